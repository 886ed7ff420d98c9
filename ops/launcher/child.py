"""Runs child processes and never leaves one behind.

Invariant: when `run` returns or raises, or `beside` is left, the child is gone. Ctrl-C reaches the whole foreground group, so the child
already has it and gets time to clean up (pytest tears down its fixtures, pip removes its temporary folders); one that stays is asked
again, then terminated, then killed. A SIGTERM or SIGHUP meant for us ends it the same way.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


@contextmanager
def beside(argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str]) -> Iterator[Callable[[], int]]:
    """A command that runs beside what is done inside, and says nothing: yields a function that waits for its end and has its exit code.

    One that still runs when this is left is no longer wanted, and is ended.
    """
    process = subprocess.Popen(
        [str(part) for part in argv],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process.wait
    finally:
        if process.poll() is None:
            _end(process, CLEAN_UP_S, told_already=False)


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
