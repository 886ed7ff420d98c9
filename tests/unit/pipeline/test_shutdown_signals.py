"""What a process makes of the signals that it is told to end by (`Shutdown.on_signals`)."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from pipeline.process import Shutdown

TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


@pytest.mark.parametrize(
    ("launcher", "signals", "hurries"),
    [
        (False, [TERM], False),
        (False, [TERM, TERM], True),
        (True, [TERM], False),
        (True, [TERM, INT], True),
        # Slurm preempts: SIGTERM for the step and for the job, and SIGUSR1 from the batch shell that got one too, in any order
        (True, [TERM, TERM, USR1], False),
        (True, [USR1, TERM, TERM], False),
        (True, [TERM, USR1, TERM], False),
        # the batch shell was told, and told again
        (True, [USR1, USR1], False),
        # it was told, and somebody is in a hurry
        (True, [USR1, INT, INT], True),
    ],
)
async def test_what_is_an_end_and_what_is_a_hurry(launcher: bool, signals: list[signal.Signals], hurries: bool) -> None:
    loop, all_came, shutdown = asyncio.get_running_loop(), asyncio.Event(), Shutdown()
    before = {number: signal.getsignal(number) for number in (TERM, INT, USR1, signal.SIGHUP)}
    loop.add_signal_handler(signal.SIGWINCH, all_came.set)
    shutdown.on_signals(launcher=launcher)
    try:
        for number in (*signals, signal.SIGWINCH):
            os.kill(os.getpid(), number)
        await all_came.wait()
    finally:
        for number in (*before, signal.SIGWINCH):
            loop.remove_signal_handler(number)
        for number, handler in before.items():
            signal.signal(number, handler)

    assert shutdown.stop.is_set()
    assert shutdown.hurry.is_set() is hurries
