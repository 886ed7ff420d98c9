"""The guard of a process group: nothing of the group outlives the guard, its starter, or the command itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_in_thread

FAMILY = """
import os, signal, subprocess, sys, time
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.replace(sys.argv[1] + ".new", sys.argv[1])
if "--leave" in sys.argv:
    sys.exit(7)
time.sleep(600)
"""
"""A command with a child that does not end by itself nor by SIGTERM."""


def is_there(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


class Guarded:
    """A guard with a family, and the pipe by which it knows of us."""

    def __init__(self, folder: Path, *options: str, grace_s: float = 0.3) -> None:
        self.reading, self.writing = os.pipe()
        told = folder / "pids"
        self.guard = subprocess.Popen(
            [sys.executable, "-m", "ops.group_guard", str(grace_s), sys.executable, "-c", FAMILY, str(told), *options],
            env={**os.environ, "ROLLSTREAM_PARENT_FD": str(self.reading)},
            pass_fds=(self.reading,),
            start_new_session=True,
        )
        os.close(self.reading)
        wait_in_thread(told.exists, "the family is there")
        self.pids = [int(word) for word in told.read_text().split()]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.writing)
        self.guard.kill()
        self.guard.wait()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait_gone(self) -> None:
        wait_in_thread(lambda: not any(map(is_there, self.pids)), "nothing of the family is left")


@pytest.fixture
def made() -> Iterator[list[Guarded]]:
    """Ended after the test, whatever became of them."""
    guards: list[Guarded] = []
    yield guards
    for guarded in guards:
        guarded.close()


def test_a_command_that_ends_takes_its_children_along_and_gives_its_code(made: list[Guarded], tmp_path: Path) -> None:
    made.append(Guarded(tmp_path, "--leave"))

    assert made[0].guard.wait(10) == 7
    made[0].wait_gone()


def test_a_signal_to_the_guard_ends_the_command_and_then_the_rest(made: list[Guarded], tmp_path: Path) -> None:
    made.append(Guarded(tmp_path))

    made[0].guard.terminate()

    assert made[0].guard.wait(10) == 128 + signal.SIGTERM
    made[0].wait_gone()


def test_a_command_that_does_not_listen_is_killed_when_its_time_is_over(made: list[Guarded], tmp_path: Path) -> None:
    made.append(Guarded(tmp_path, "--deaf"))

    made[0].guard.terminate()

    assert made[0].guard.wait(10) == 128 + signal.SIGKILL
    made[0].wait_gone()


def test_a_second_signal_does_not_wait(made: list[Guarded], tmp_path: Path) -> None:
    made.append(Guarded(tmp_path, "--deaf", grace_s=500))

    made[0].guard.terminate()
    began_s = time.monotonic()
    while made[0].guard.poll() is None and time.monotonic() - began_s < 30:
        made[0].guard.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            made[0].guard.wait(2.0)  # two signals that come at once are one

    assert made[0].guard.returncode == 128 + signal.SIGKILL
    made[0].wait_gone()


def test_the_end_of_who_started_it_ends_all(made: list[Guarded], tmp_path: Path) -> None:
    made.append(Guarded(tmp_path, "--deaf"))

    os.close(made[0].writing)  # as the kernel does when the starter is killed

    made[0].wait_gone()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_guard_that_is_killed_takes_the_command_along(made: list[Guarded], tmp_path: Path) -> None:
    made.append(Guarded(tmp_path))

    made[0].guard.kill()

    wait_in_thread(lambda: not is_there(made[0].pids[0]), "the command is gone")


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ops.group_guard", "1", str(tmp_path / "nothing")], capture_output=True, text=True, timeout=20, check=False
    )

    assert done.returncode == 127
    assert "cannot be started" in done.stderr
