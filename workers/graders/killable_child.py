"""The child's side of a killable process: limits, frames, and three ways of not outliving the parent."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

_LENGTH_BYTES = 4
_PR_SET_PDEATHSIG = 1
_ALARM_GRACE_S = 1.0
"""By the clock the parent kills; the alarm is for a child whose parent is gone and whose interpreter is stuck in one long operation."""
_OPEN_FILES = 64

Json = dict[str, Any]  # as in killable.py


def serve(handle: Callable[[Json], Json]) -> None:
    """Answers the parent's requests with `handle` until the pipe closes; never returns.

    To be called at the end of a module run with `python -m MODULE PARENT_PID MEMORY_BYTES`, after its imports: the memory they took is
    not counted. An exception of `handle` is told to the parent as an `error`; running out of memory too.
    """
    parent, memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    requests_fd, replies_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what a library prints must not end up among the replies
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests_fd, requests), name="requests", daemon=True).start()
    _limit(memory_bytes)
    _send(replies_fd, {"ready": os.getpid()})
    while True:
        message = json.loads(requests.get())
        # both signals keep their default action, which ends us whatever the interpreter is doing
        signal.setitimer(signal.ITIMER_PROF, message["cpu_s"])
        signal.setitimer(signal.ITIMER_REAL, message["wall_s"] + _ALARM_GRACE_S)
        try:
            reply = handle(message["request"])
        except MemoryError:
            reply = {"error": "MemoryError", "message": f"more than {memory_bytes >> 20} MiB"}
        except Exception as broken:  # noqa: BLE001 - the boundary of the child: whatever a library raises becomes a reply
            reply = {"error": type(broken).__name__, "message": _shown(broken)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(replies_fd, reply)


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us in order
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # it died before we could ask


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    used = _address_space_bytes()
    if used is not None:
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))


def _address_space_bytes() -> int | None:
    """What the process has mapped now; None where the system does not tell, and there no limit on it works either."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _receive(source: int, requests: queue.SimpleQueue[bytes]) -> None:
    while True:
        body = _exactly(source, int.from_bytes(_exactly(source, _LENGTH_BYTES), "big"))
        requests.put(body)


def _exactly(source: int, count: int) -> bytes:
    body = b""
    while len(body) < count:
        piece = os.read(source, count - len(body))
        if not piece:
            os._exit(0)  # the parent closed the pipe or is gone; whatever runs now is wanted by nobody
        body += piece
    return body


def _send(target: int, reply: Json) -> None:
    body = json.dumps(reply).encode()
    frame = len(body).to_bytes(_LENGTH_BYTES, "big") + body
    while frame:
        frame = frame[os.write(target, frame) :]


def _shown(broken: BaseException) -> str:
    try:
        return str(broken)[:300]
    except Exception:  # noqa: BLE001 - the text of a library's exception may itself fail to be made
        return "an error that cannot be shown"
