"""Runs the test command and hears what reporters in it say; what it heard goes to standard error in the end, as one line.

    python -I recorder.py < {"command": ..., "timeout_s": ..., "env": {...}, "socket": ..., "place": ..., "options": ...}

1. Nothing of what it heard is in a file or a pipe that the tests have: it stays in this process's memory, which others of the same user
   cannot read or trace (`PR_SET_DUMPABLE`), until the command has ended.
2. Who speaks is known by the kernel (`SO_PEERCRED`, `SO_PASSCRED`): what a forked child says on its parent's connection is not heard.
3. A line counts when its key and number fit; all else on the channel is counted as stray.
4. What follows a process's `bye`, and a test that begins inside another one or ends without having begun, is told.
5. The command's standard output and error are this process's standard output: the log, as it came. The exit code is the command's.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib

MARK = "rollstream-report:"
HELLO_S = 10.0
"""A reporter says who it is at once; a connection that does not is not one."""
MAX_LINE = 1 << 20
MAX_SESSIONS = 64
WORSE = ("PASSED", "XPASS", "XFAIL", "SKIPPED", "XFAIL_NOTRUN", "NO_END", "ERROR", "FAILED")
IS_LINUX = sys.platform.startswith("linux")
CREDENTIALS = struct.Struct("3i")


class Session:
    """One reporter: one process that runs tests."""

    def __init__(self, connection, pid, at):
        self.connection = connection
        self.pid = pid
        self.at = at
        self.key = base64.b16encode(os.urandom(16)).decode()
        self.heard = b""
        self.number = 0
        self.framework = ""
        self.tests = {}  # id -> [status, other names]
        self.finish = None
        self.canaries = None  # how tests of ours ended in that runner
        self.said_bye = False
        self.disorder = ""
        self.open = set()
        self.tampering = []
        self.stray = 0
        self.foreign = 0
        self.overlaps = False
        self.closed = False

    def hear(self, data):
        self.heard += data
        while b"\n" in self.heard:
            line, self.heard = self.heard.split(b"\n", 1)
            self._line(line)
        if len(self.heard) > MAX_LINE:
            self.heard = b""
            self.stray += 1

    def _line(self, line):
        parts = line.split(b" ", 2)
        said = b"%d" % self.number
        if len(parts) != 3 or parts[1] != said:
            self.stray += 1
            return
        signed = hmac.new(self.key.encode(), said + b" " + parts[2], hashlib.sha256).hexdigest().encode()
        if not hmac.compare_digest(parts[0], signed):
            self.stray += 1
            return
        self.number += 1
        self._event(json.loads(parts[2].decode("utf-8", "surrogateescape")))

    def _event(self, event):
        kind = event["e"]
        if self.said_bye:
            self.disorder = self.disorder or "something was said after the last word"
        if kind == "hello":
            self.framework = event["framework"]
        elif kind == "begin":
            self.finish = None
            if self.open - {event["t"][0]} and not self.disorder:
                self.disorder = "%s began while another test ran" % event["t"][0]
            self.open.add(event["t"][0])
            self._note(event["t"], "NO_END", begins=True)
        elif kind == "end":
            if event["t"][0] in self.open:
                self.open.discard(event["t"][0])
            elif event["s"] != "ERROR" and not self.disorder:  # files and classes that break have no beginning
                self.disorder = "%s ended, and had not begun" % event["t"][0]
            self._note(event["t"], event["s"], begins=False)
        elif kind == "canaries":
            if self.canaries is None:
                self.canaries = []
            self.canaries.append(event["ends"])
        elif kind == "bye":
            self.said_bye = True
        elif kind == "tampering":
            if len(self.tampering) < 50:
                self.tampering.append(event["why"][:300])
        elif kind == "finish":
            self.finish = event
            self.open.clear()

    def _note(self, names, status, begins):
        known = self.tests.get(names[0])
        if known is None:
            self.tests[names[0]] = [status, names[1:], begins]
            return
        was, _, is_open = known
        if not begins and ((is_open and was == "NO_END") or WORSE.index(status) > WORSE.index(was)):
            known[0] = status
        known[2] = begins

    def said(self):
        tests = {}
        for name, (status, others, is_open) in self.tests.items():
            tests[name] = ["NO_END" if is_open and WORSE.index(status) < WORSE.index("NO_END") else status, others]
        return {
            "framework": self.framework,
            "tests": tests,
            "finish": self.finish,
            "canaries": self.canaries,
            "said_bye": self.said_bye,
            "disorder": self.disorder,
            "tampering": self.tampering,
            "stray": self.stray,
            "foreign": self.foreign,
            "overlaps": self.overlaps,
        }


def hide():
    """Closes this process to others of its user: their `/proc` entry, ptrace and memory."""
    if not IS_LINUX:
        return
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    except (ImportError, OSError, AttributeError):  # an image without a working ctypes: the other walls stand
        pass


def listen(name):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name[1:] if name.startswith("@") else name)
    listener.listen(16)
    listener.setblocking(False)
    return listener


def peer_of(connection):
    if not IS_LINUX:
        return 0
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[0]


def receive(connection):
    """Some bytes, and the process that wrote them (0 where the system does not tell)."""
    if not IS_LINUX:
        return connection.recv(65536), 0
    data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(CREDENTIALS.size))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return data, CREDENTIALS.unpack(content[: CREDENTIALS.size])[0]
    return data, -1


def environment(task):
    """The task's variables over this process's own, with our folder and our plugin in front of what both may say."""
    env = dict(os.environ, **task["env"])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (task["place"], env.get("PYTHONPATH", ""))))
    if task["options"]:
        env["PYTEST_ADDOPTS"] = (task["options"] + " " + env.get("PYTEST_ADDOPTS", "")).strip()
        env["RSREPORT_OPTIONS"] = task["options"]
    env["RSREPORT_SOCKET"] = task["socket"]
    env["RSREPORT_FOLDER"] = task["place"]
    return env


def run(task):
    if not task["socket"]:  # names without a file are Linux's; a path must be short
        task["socket"] = os.path.join(tempfile.mkdtemp(dir="/tmp"), "s")
    listener = listen(task["socket"])
    waker, woken = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    started = time.time()
    sys.stdout.flush()
    child = subprocess.Popen(
        ["bash", "-c", task["command"]],
        stdin=subprocess.DEVNULL,
        stdout=1,
        stderr=1,
        env=environment(task),
        start_new_session=True,
    )
    sessions, refused, timed_out = [], 0, False
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        selector.register(waker, selectors.EVENT_READ, waker)
        while child.poll() is None:
            left = started + task["timeout_s"] - time.time()
            if left <= 0:
                timed_out = True
                break
            refused += hear(selector, listener, sessions, min(left, 1.0))
        while selector.select(0.0):  # what was said before the end is still to be read
            refused += hear(selector, listener, sessions, 0.0)
    if timed_out:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    report = {
        "returncode": code,
        "timed_out": timed_out,
        "took_s": round(time.time() - started, 3),
        "sessions": [session.said() for session in sessions if session.framework],
        "unknown": refused + sum(1 for session in sessions if not session.framework),
    }
    packed = base64.b64encode(zlib.compress(json.dumps(report).encode("utf-8", "surrogateescape"))).decode()
    sys.stderr.write("\n%s%s\n" % (MARK, packed))
    sys.stderr.flush()
    return 128 - code if code < 0 else code


def hear(selector, listener, sessions, wait_s):
    """Serves what is there; how many connections were refused."""
    refused = 0
    # the listener last: who went before the next came does not overlap it
    for key, _ in sorted(selector.select(wait_s), key=lambda one: one[0].fileobj is listener):
        if key.fileobj is listener:
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            if len(sessions) >= MAX_SESSIONS:
                connection.close()
                refused += 1
                continue
            session = Session(connection, peer_of(connection), time.time())
            session.overlaps = any(not other.closed and other.framework and other.finish is None for other in sessions)
            sessions.append(session)
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, session)
            with contextlib.suppress(OSError):
                connection.sendall(session.key.encode() + b"\n")
        elif isinstance(key.data, Session):
            session = key.data
            try:
                data, pid = receive(session.connection)
            except BlockingIOError:
                continue
            except OSError:
                data, pid = b"", session.pid
            if not data:
                selector.unregister(session.connection)
                session.connection.close()
                session.closed = True
            elif pid != session.pid:
                session.foreign += 1
            else:
                session.hear(data)
        else:
            os.read(key.fd, 512)
    return refused


if __name__ == "__main__":
    hide()
    sys.exit(run(json.loads(sys.stdin.read())))
