"""The holder's line to its worker: requests in, answers out, and whether it is time to stop. It is listened to in every wait.

Time to stop is when the worker has ended or closed its side, when it said so, or on SIGTERM. What else comes while something is waited for
is kept in its order: a request is one more thing to do, a stop is none to come after others.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

LINUX = sys.platform == "linux"


class WorkerLine:
    """The control socket, the worker's pidfd, and the pipe by which signals wake us."""

    def __init__(self, worker_pid: int) -> None:
        self._control = socket.socket(fileno=os.dup(0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        self._received = bytearray()
        self.requests: deque[dict[str, Any]] = deque()
        self.descriptors: deque[int] = deque()
        """Of the requests that wait, in their order."""
        self.stopping: float | None = None
        """Seconds that what runs is given to end by itself; None while there is no reason to stop."""
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(ignored, signal.SIG_IGN)
        self._worker = -1
        if LINUX:  # beside the socket's end: a process forked from the worker may hold a copy of its side
            with contextlib.suppress(OSError):
                self._worker = os.pidfd_open(worker_pid)
            if os.getppid() != worker_pid:
                self.stop()

    def stop(self, grace_s: float = 0.0) -> None:
        if self.stopping is None:
            self.stopping = grace_s

    def let_go(self) -> None:
        """In a child of ours, which the guest may stop: the worker hears of our end all the same."""
        self._control.close()

    def wait(self, *descriptors: int, timeout_s: float | None = None) -> bool:
        """Until something came: a request, the end of a child, a reason to stop; or, when some are given, until a descriptor is readable.

        Returns:
            Whether one of `descriptors` is readable; False when the time is up or there is a reason to stop.
        """
        poll = select.poll()
        for number in (self._control.fileno(), self._wake, self._worker, *descriptors):
            if number >= 0:
                poll.register(number, select.POLLIN)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        awaited = set(descriptors)
        while self.stopping is None:
            left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            came = [number for number, _ in poll.poll(left_ms)]
            if self._wake in came:
                self.clear_wake()
            if self._worker in came:
                self.stop()
            if self._control.fileno() in came:
                self._read()
            if not awaited.isdisjoint(came) and self.stopping is None:
                return True
            if not descriptors or not came:
                break
        return False

    def wait_for_child(self, timeout_s: float) -> None:
        """Until a signal came, which the end of a child is, or the time is up; to be used where stopping has begun."""
        select.select([self._wake], [], [], timeout_s)
        self.clear_wake()

    def clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass

    def send(self, frame: dict[str, Any], descriptor: int = -1) -> None:
        payload = json.dumps(frame).encode()
        data = struct.pack(">I", len(payload)) + payload
        with contextlib.suppress(OSError):  # the worker ended: the loop will see it
            if descriptor >= 0:
                rights = array.array("i", [descriptor])
                sent = self._control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                data = data[sent:]
            self._control.sendall(data)

    def _read(self) -> None:
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            data, ancillary, _, _ = self._control.recvmsg(65536, socket.CMSG_SPACE(16 * 4), flags)
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) // 4 * 4])
                for number in numbers:
                    os.set_inheritable(number, False)
                    self.descriptors.append(number)
        if not data:
            self.stop()
            return
        self._received += data
        while len(self._received) >= 4:
            (length,) = struct.unpack_from(">I", self._received)
            if len(self._received) < 4 + length:
                return
            request = json.loads(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            if request["op"] == "stop":
                self.stop(request["grace_s"])
            self.requests.append(request)
