"""A guest that works against us: it holds up who enters, plants what hangs whoever reads it. It harms itself only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time

import psutil
import pytest

from pipeline.testing.wait import wait_until
from workers.sandbox import ExecResult, Sandbox, SandboxError, SandboxFileError, SandboxGone
from workers.sandbox.local import LocalSandbox
from workers.sandbox.local.identity import is_running

STOP_NEWCOMERS = """
import os, signal
stood = set(os.listdir('/proc'))
open('/tmp/watching', 'w').close()
while True:
    for pid in os.listdir('/proc'):
        if pid.isdigit() and pid not in stood:
            try:
                os.kill(int(pid), signal.SIGSTOP)
            except OSError:
                pass
"""


async def test_who_stops_all_that_enter_gets_typed_answers_and_stop_ends_it(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """A process on its way in has the guest's uid and can be stopped by it. The holder waited for it for ever, deaf to its worker's end."""
    await sandbox.write_file("stop.py", STOP_NEWCOMERS.encode())
    await sandbox.exec(
        "for i in 1 2 3; do setsid python3 stop.py & done >/dev/null 2>&1; until [ -e /tmp/watching ]; do :; done", timeout_s=10
    )

    for _ in range(3):
        before = time.monotonic()
        with contextlib.suppress(SandboxError):
            await sandbox.exec("true", timeout_s=1)
        assert time.monotonic() - before < 15
    before = time.monotonic()
    await sandbox.kill()

    assert time.monotonic() - before < 15
    assert (await neighbour.exec("echo on", timeout_s=10)).stdout == b"on\n"


def states_below(pid: int) -> list[str]:
    states = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # the first of the two that enter ends at once
            states.append(child.status())
    return states


async def held_up(sandbox: Sandbox, holder_pid: int) -> asyncio.Task[ExecResult]:
    """A command that the guest has stopped on its way in. One that was quicker than the guest is followed by another."""
    while True:
        enters = asyncio.create_task(sandbox.exec("true", timeout_s=100))
        while not enters.done():
            if psutil.STATUS_STOPPED in states_below(holder_pid):
                return enters
            await asyncio.wait([enters], timeout=0.001)
        await enters


@pytest.mark.parametrize("end", ["a stop", "SIGTERM", "the worker's end"])
async def test_a_holder_whose_entering_child_is_stopped_hears_its_worker_all_the_same(sandbox: Sandbox, end: str) -> None:
    """It waited for that child only, for the ten seconds that it is given: so long the processes of a dead worker's sandbox lived on."""
    assert isinstance(sandbox, LocalSandbox)
    holder = sandbox._holder.identity
    assert holder is not None
    await sandbox.write_file("stop.py", STOP_NEWCOMERS.encode())
    await sandbox.exec(
        "for i in 1 2 3; do setsid python3 stop.py & done >/dev/null 2>&1; until [ -e /tmp/watching ]; do :; done", timeout_s=10
    )
    enters = await held_up(sandbox, holder.pid)

    before = time.monotonic()
    if end == "a stop":
        await sandbox.kill()
    elif end == "SIGTERM":
        os.kill(holder.pid, signal.SIGTERM)
    else:
        sandbox._holder._control.shutdown(socket.SHUT_RDWR)
    await sandbox.wait_gone()
    await wait_until(lambda: not is_running(holder), "the holder has ended")

    assert time.monotonic() - before < 15
    with pytest.raises(SandboxGone):
        await enters


def stopped_in_its_own_session(holder_pid: int) -> bool:
    """Whether a child on its way in is; of others none is stopped."""
    for child in psutil.Process(holder_pid).children():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if child.status() == psutil.STATUS_STOPPED and os.getsid(child.pid) == child.pid:
                return True
    return False


async def test_a_holder_that_is_killed_while_its_entering_child_is_stopped_takes_all_along(sandbox: Sandbox) -> None:
    """A child on its way in is a copy of its holder: with the socket that PID 1 lives by in it, whoever stopped it kept his sandbox."""
    assert isinstance(sandbox, LocalSandbox)
    holder, keeper = sandbox._holder.identity, sandbox.keeper
    assert holder is not None
    assert keeper is not None
    await sandbox.write_file("stop.py", STOP_NEWCOMERS.encode())
    await sandbox.exec(
        "for i in 1 2 3; do setsid python3 stop.py & done >/dev/null 2>&1; until [ -e /tmp/watching ]; do :; done", timeout_s=10
    )
    enters = asyncio.create_task(sandbox.exec("true", timeout_s=100))
    while not stopped_in_its_own_session(holder.pid):  # an earlier one the kernel sets going when its session's leader ends
        await asyncio.wait([enters], timeout=0.001)
        if enters.done():  # it was quicker than the guest
            enters = asyncio.create_task(sandbox.exec("true", timeout_s=100))

    os.kill(holder.pid, signal.SIGKILL)

    async with asyncio.timeout(15):
        await sandbox.wait_gone()
    await wait_until(lambda: not is_running(keeper), "PID 1 has ended", timeout_s=15)
    with pytest.raises(SandboxGone):
        await enters


async def test_what_would_hang_a_reader_is_refused(sandbox: Sandbox) -> None:
    """A write lease makes whoever opens the file wait 45 s; a loop of links, a terminal and a socket are no files."""
    hold = "import fcntl, os, signal, time; d = os.open('leased', os.O_RDWR | os.O_CREAT); os.write(d, b'x');"
    hold += "signal.signal(signal.SIGIO, signal.SIG_IGN);"
    hold += "fcntl.fcntl(d, fcntl.F_SETLEASE, fcntl.F_WRLCK); open('ready', 'w').close(); time.sleep(100)"
    await sandbox.exec(
        "ln -s a b; ln -s b a; ln -s /dev/zero zero; ln -s /dev/tty tty; ln -s /proc/self/fd/0 self; mkfifo pipe", timeout_s=10
    )
    await sandbox.exec(["bash", "-c", f'python3 -c "{hold}" >/dev/null 2>&1 & until [ -e ready ]; do :; done'], timeout_s=10)

    before = time.monotonic()
    for path in ("a", "zero", "tty", "self", "pipe", "leased"):
        with pytest.raises(SandboxFileError):
            await sandbox.read_file(path, max_bytes=1000)

    assert time.monotonic() - before < 30, "the lease was not waited for"
