"""How a reporter talks to the recorder: signed, numbered lines over a socket, from the process that connected and from no other.

The names of the socket and of this module leave the environment as soon as it is connected: what the tests start knows nothing of it.

Tested code shares the process and can find what speaks. Three things it cannot do by calling that:

- speak: whoever is on the stack when something is said is looked at, down to the first frame. The reporter speaks from the thread in which
  it began; below it are the runner, what was on the stack when the reporter began, and plugins, and nobody else of the repository.
- leave: the last word, `bye`, is said where the process ends by itself, with nothing at all on the stack. Who ends the process in
  another way, or becomes another program, has not ended the run.
- take away what was said: a word said by somebody else is told as such first.
"""

import atexit
import hashlib
import hmac
import json
import os
import socket
import sys
import threading

SOCKET = "RSREPORT_SOCKET"
FOLDER = "RSREPORT_FOLDER"
OPTIONS = "RSREPORT_OPTIONS"


def forget():
    """Takes out of the environment what was put in for us."""
    name = os.environ.pop(SOCKET, "")
    folder = os.environ.pop(FOLDER, "")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    if "PYTHONPATH" in os.environ:
        if any(paths):
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        else:
            del os.environ["PYTHONPATH"]
    ours = os.environ.pop(OPTIONS, "")
    if ours and "PYTEST_ADDOPTS" in os.environ:
        left = os.environ["PYTEST_ADDOPTS"].replace(ours, "", 1).strip()
        if left:
            os.environ["PYTEST_ADDOPTS"] = left
        else:
            del os.environ["PYTEST_ADDOPTS"]
    return name


class Stack:
    """Who may be on the stack when something is said."""

    def __init__(self, ours, root, whole):
        self.ours = ours
        self.root = os.path.join(os.path.realpath(root), "")
        self.whole = whole  # False = only who calls us is looked at
        self.seen = {}  # by identity: two pieces of code that are alike are equal, wherever they come from
        self.trusted = set()
        self.get_frame, self.get_thread = sys._getframe, threading.get_ident
        self.thread = self.get_thread()
        self.trust_files(sys.modules.get("os"), whole_folder=True)
        self.trust_files(sys.modules.get(ours["__name__"]))

    def trust_frames(self, frame):
        while frame is not None:
            self.seen[id(frame.f_code), id(frame.f_globals)] = frame.f_code, frame.f_globals, ""
            frame = frame.f_back

    def trust_files(self, *modules, whole_folder=False):
        """What a module's file has, or its whole folder."""
        for module in modules:
            path = getattr(module, "__file__", None)
            if path:
                path = os.path.realpath(path)
                self.trusted.add(os.path.join(os.path.dirname(path), "") if whole_folder else path)

    def stranger(self, depth):
        """Who is there that may not be; empty when nobody is."""
        frame = self.get_frame(depth)
        if frame.f_globals is not self.ours:
            return frame.f_code.co_filename
        if not self.whole:
            return ""
        if self.get_thread() != self.thread:
            return "another thread"
        while frame is not None:
            code, names = frame.f_code, frame.f_globals
            known = self.seen.get((id(code), id(names)))
            if known is None:
                # code can say that it is another file's; its module is where it was made
                paths = [path for path in (code.co_filename, names.get("__file__")) if isinstance(path, str) and self._is_strange(path)]
                known = self.seen[id(code), id(names)] = code, names, paths[0] if paths else ""
            if known[2]:
                return known[2]
            frame = frame.f_back
        return ""

    def nobody(self, depth):
        """Whether the stack is empty, in our thread."""
        return self.get_frame(depth).f_back is None and self.get_thread() == self.thread

    def _is_strange(self, path):
        if path.startswith("<"):  # text that was compiled; who had it run is on the stack as well
            return False
        path = os.path.realpath(os.path.join(self.root, path))
        if not path.startswith(self.root) or os.sep + "site-packages" + os.sep in path or os.path.basename(path) == "conftest.py":
            return False
        return path not in self.trusted and not any(path.startswith(each) for each in self.trusted if each.endswith(os.sep))


def connect(framework, ours, whole_stack):
    """A function that sends an event, and the `Stack` that it looks at; None, None where there is no recorder.

    `ours` are the globals of the module that speaks.
    """
    name = forget()
    if not name:
        return None, None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(30)
    connection.connect("\0" + name[1:] if name.startswith("@") else name)
    key = b""
    while not key.endswith(b"\n"):
        got = connection.recv(64)
        if not got:
            return None, None
        key += got
    key = key.strip()
    # what tested code may replace is kept as it is now
    owner, pid_of, dump, sign, digest, send_all = os.getpid(), os.getpid, json.dumps, hmac.new, hashlib.sha256, connection.sendall
    stack = Stack(ours, os.getcwd(), whole_stack)
    stack.trust_frames(stack.get_frame())
    state = [0]

    def write(event):
        if pid_of() != owner:
            return
        body = b"%d %s" % (state[0], dump(event).encode("utf-8", "surrogateescape"))
        state[0] += 1
        try:  # noqa: SIM105  # tested code may have replaced contextlib
            send_all(sign(key, body, digest).hexdigest().encode() + b" " + body + b"\n")
        except OSError:  # the channel was closed under us: what is not said has not happened
            pass

    def send(event):
        stranger = "" if event.get("e") == "tampering" else stack.stranger(2)
        if stranger:
            write({"e": "tampering", "why": "%s spoke for the runner" % stranger})
        write(event)

    def leave():
        if stack.nobody(1):
            write({"e": "bye"})

    write({"e": "hello", "framework": framework})
    atexit.register(leave)
    return send, stack
