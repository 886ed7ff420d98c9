"""Whether a process has ended: not by its state alone, which says less than it seems to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_in_thread
from workers.sandbox.local.identity import identify, is_running, send_signal, wait_ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")

FIRST_THREAD_ENDS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
NOBODY_READS = """
import ctypes, os, signal, time
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x20000000) != 0:
    raise OSError(ctypes.get_errno(), "no namespaces")
first, other = os.fork(), 0
if first:
    other = os.fork()
if not first or not other:
    signal.pause()
print(first, other, flush=True)
signal.pause()
"""
"""Makes two processes in a PID namespace of their own, PID 1 of it and another, and never reads the exit code of either."""


@contextmanager
def program(text: str) -> Iterator[list[int]]:
    """A program that says numbers of processes; all of them are killed in the end."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        try:
            if not said:
                why = process.stderr.read()
                assert "no namespaces" in why, why
                pytest.skip("no user namespaces here")
            yield [int(word) for word in said.split()]
        finally:
            process.kill()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_whose_first_thread_has_ended_runs_on() -> None:
    """Its state is that of a zombie, which hid what runs from whoever looked for survivors."""
    with program(FIRST_THREAD_ENDS) as (pid,):
        wait_in_thread(lambda: state_of(pid) == "Z", "its first thread has ended")

        process = identify(pid)

        assert process is not None
        assert is_running(process)
        assert send_signal(process, signal.SIGKILL)
        assert wait_ended([process], 10.0) == []


def test_a_killed_pid_1_has_ended_though_nobody_reads_what_became_of_the_others() -> None:
    """In a container whose first process is no init nobody reads the exit codes of a killed holder's children. PID 1 of the sandbox then
    waits for that in the kernel, for ever, and was taken for one that survives SIGKILL: the sandbox counted as a leak, the node as
    degraded."""
    with program(NOBODY_READS) as (first, other):
        process, neighbour = identify(first), identify(other)
        assert process is not None
        assert neighbour is not None

        os.kill(first, signal.SIGKILL)

        assert wait_ended([process, neighbour], 10.0) == []
        assert state_of(first) not in "ZX", "PID 1 did not wait: this test shows nothing"
        assert state_of(other) == "Z"
