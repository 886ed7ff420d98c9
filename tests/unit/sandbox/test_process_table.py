"""What the watchdog sees of a process that hides from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline.testing.wait import wait_until
from workers.sandbox.limits import ending
from workers.sandbox.limits.process_table import Process, read_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="without /proc nobody is watched")

MIB = 1024**2
HIDE = """
import ctypes, sys, threading, time
held = bytearray(60 << 20)
threading.Thread(target=time.sleep, args=(60,), daemon=False).start()
ctypes.CDLL(None).pthread_exit(0)
"""


async def test_a_process_whose_first_thread_has_ended_is_seen_with_what_it_holds_and_is_ended() -> None:
    """To the kernel's list such a process is a zombie without memory: a sandbox could fill the node from the second thread on."""
    program = subprocess.Popen([sys.executable, "-I", "-S", "-c", HIDE])  # noqa: ASYNC220  # waited for below
    seen: list[Process] = []

    def is_hidden() -> bool:
        found = read_process(program.pid)
        assert found is not None
        seen.append(found)
        return found.state == "Z"

    try:
        await wait_until(is_hidden, "its first thread ended")
        hidden = seen[-1]
        told: list[str] = []
        ending.kill([hidden], told.append)

        assert not hidden.is_ended
        assert hidden.rss_bytes > 60 * MIB
        assert len(told) == 1
        assert program.wait(timeout=10) == -9
    finally:
        program.kill()
        program.wait()
