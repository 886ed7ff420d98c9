"""Runs child processes and never leaves one behind.

Invariant: when `run` returns or raises, or `beside` is left, the child is gone. Ctrl-C reaches the whole foreground group, so the child
already has it and gets time to clean up (pytest tears down its fixtures, pip removes its temporary folders); one that stays is asked
again, then terminated, then killed. A SIGTERM or SIGHUP meant for us ends it the same way.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

CLEAN_UP_S = 10.0
"""How long a child may usually take after each signal: pytest stops servers and workers in this time."""
TICK_S = 0.2
"""Between two looks at a running child when somebody shows its progress: often enough to look alive."""


class Ended(SystemExit):
    """We were told to end: leaves with 128 + the signal's number, after the child is gone."""


def end_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into `Ended`, so that they unwind like Ctrl-C does."""

    def end(number: int, _frame: object) -> None:
        raise Ended(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    keep_open: Sequence[int] = (),
    tick: Callable[[], None] | None = None,
    clean_up_s: float = CLEAN_UP_S,
) -> int:
    """Run a command to its end and return its exit code (negative: the signal that ended it).

    Args:
        output: where its stdout and stderr go; ours when None.
        keep_open: file descriptors it inherits: a lock that must hold as long as it lives, even if we are killed.
        tick: called every `TICK_S` while it runs.
        clean_up_s: how long it may take after each signal, when it has to end.
    """
    process = subprocess.Popen(
        [str(part) for part in argv],
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        pass_fds=tuple(keep_open),
    )
    try:
        if tick is None:
            return process.wait()
        while True:
            try:
                return process.wait(timeout=TICK_S)
            except subprocess.TimeoutExpired:
                tick()
    except KeyboardInterrupt:
        _end(process, clean_up_s, told_already=True)
        raise
    except BaseException:
        _end(process, clean_up_s, told_already=False)
        raise


class Beside:
    """A command that runs beside what its starter does."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._began_s = time.monotonic()
        self.took_s = 0.0
        """From its start to the look that found it ended."""

    def look(self) -> int | None:
        """Its exit code, None while it runs."""
        if self._process.returncode is None and self._process.poll() is not None:
            self.took_s = time.monotonic() - self._began_s
        return self._process.returncode

    def wait(self, tick: Callable[[], None] | None = None) -> int:
        """Its exit code, when it has ended.

        Args:
            tick: called now and then until then.
        """
        while (code := self.look()) is None:
            if tick is not None:
                tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TICK_S)
                self.took_s = time.monotonic() - self._began_s
        return code


@contextlib.contextmanager
def beside(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], output: IO[bytes] | None = None) -> Iterator[Beside]:
    """A command that runs beside what is done inside.

    One that still runs when this is left is no longer wanted, and is ended.

    Args:
        output: where its stdout and stderr go; nowhere when None.
    """
    process = subprocess.Popen(
        [str(part) for part in argv],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if output is None else output,
        stderr=subprocess.STDOUT,
    )
    told_already = False
    try:
        yield Beside(process)
    except KeyboardInterrupt:
        told_already = True
        raise
    finally:
        if process.poll() is None:
            _end(process, CLEAN_UP_S, told_already=told_already)


def _end(process: subprocess.Popen[bytes], clean_up_s: float, *, told_already: bool) -> None:
    """Wait for a child that has to end, with a stronger signal each time it does not."""
    ladder: list[signal.Signals | None] = [None] if told_already else []
    ladder += [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    for step in ladder:
        if step is not None:
            process.send_signal(step)
        try:
            process.wait(timeout=clean_up_s)
            return
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            continue  # the second Ctrl-C of somebody in a hurry: the next step of the ladder
