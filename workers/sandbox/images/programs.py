"""Runs a program of the node to its end, and leaves nothing of it behind, also when this process is killed.

Between us and the program stands a guard: it leads the program's group, holds the end of a pipe of ours, and kills the group when that
closes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.logs import redact_text
from workers.sandbox.images.locks import Say, say_nothing

_KEPT_LINES = 12
_STOP_S = 10.0
_LOOK_S = 0.1
_GUARD = """
import os, signal, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
code = child.wait()
os._exit(code if code >= 0 else 128 - code)
"""


class ProgramFailed(Exception):
    """A program that did not do what it was run for."""

    def __init__(self, what: str, code: int = 0, said: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.code = code
        self.said = said
        """The last lines it said, without passwords."""


def run_program(
    argv: Sequence[str],
    timeout_s: float,
    say: Say = say_nothing,
    *,
    environ: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    cwd: Path | None = None,
) -> None:
    """Runs it in a session of its own and says what it says, line by line.

    Args:
        environ: its whole environment; this process's own by default.
        stop: when it is set, the program is killed.

    Raises:
        ProgramFailed: it cannot be run, ended with an error, was stopped, or took too long.
    """
    name = os.path.basename(argv[0])
    if shutil.which(argv[0]) is None:
        raise ProgramFailed(f"{argv[0]} cannot be run: it is not there, or no program")
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise ProgramFailed(f"{argv[0]} cannot be run: {error.strerror}") from error
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    reader = threading.Thread(target=_read, args=(process, last, say), name=f"lines of {name}", daemon=True)
    reader.start()
    try:
        why = _wait(process, timeout_s, stop)
    except BaseException:
        _end(process)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it left behind in its group would keep the pipe open
            os.killpg(process.pid, signal.SIGKILL)
        reader.join(_STOP_S)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
    said = tuple(last)
    if why:
        raise ProgramFailed(f"{name} {why}", process.returncode, said)
    if process.returncode != 0:
        raise ProgramFailed(f"{name} ended with {process.returncode}: " + ("\n".join(said) or "it said nothing"), process.returncode, said)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, stop: threading.Event | None) -> str:
    """Why it was ended; empty when it ended by itself."""
    left_s = timeout_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S if stop is not None else left_s)
            return ""
        left_s -= _LOOK_S if stop is not None else left_s
        if left_s <= 0 or (stop is not None and stop.is_set()):
            _end(process)
            return "was stopped" if left_s > 0 else f"did not end within {timeout_s:g} s: raise ROLLSTREAM_IMAGE_TIMEOUT_S"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks, then kills. The group too: Apptainer's helpers would go on writing."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)


def _read(process: subprocess.Popen[bytes], last: deque[str], say: Say) -> None:
    assert process.stdout is not None
    for raw in process.stdout:
        line = redact_text(raw.decode(errors="replace").strip())
        if line:
            last.append(line)
            say(line)
