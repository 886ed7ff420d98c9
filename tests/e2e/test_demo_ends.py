"""A demo that ends in any other way than by itself: nothing is left, and what is said is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from pipeline.testing import wait_in_thread
from tests.e2e.conftest import ROOT, Command
from tests.e2e.test_demo import processes_of
from workers.sandbox.local.folder import SANDBOX_ID

StartDemo = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_demo(environment: dict[str, str]) -> Iterator[StartDemo]:
    """Starts demos; as it stands one that is too large to finish."""
    with ExitStack() as stack:

        def start(groups: int = 50) -> subprocess.Popen[str]:
            arguments = [sys.executable, "-m", "ops.demo", "--groups", str(groups)]
            demo = subprocess.Popen(
                arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
            )
            stack.enter_context(demo)
            stack.callback(demo.kill)
            return demo

        yield start


def process_of(home: Path, words: str) -> psutil.Process | None:
    """The process with these words in its command line that knows this user's folders."""
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if words in command and str(home) in " ".join([command, *process.environ().values()]):
                return process
        except psutil.Error:
            continue
    return None


def sandboxes(home: Path) -> list[Path]:
    return list(home.glob("scratch/*/sandboxes/[0-9a-f]*"))


@pytest.mark.timeout(120)
def test_a_demo_that_is_killed_takes_everything_along(start_demo: StartDemo, home: Path) -> None:
    """`kill -9` of the command itself. The host noticed, and died of writing that down: its standard output was the pipe to the dead. Its
    workers, model server, supervisor and Redis ran on for ever."""
    demo = start_demo()
    wait_in_thread(lambda: bool(sandboxes(home)), "a sandbox was made", timeout_s=60)

    demo.send_signal(signal.SIGKILL)
    demo.wait()

    wait_in_thread(lambda: not processes_of(home), "all processes of the demo ended", timeout_s=40)
    assert [path.name for path in home.glob("scratch/*")] == []


@pytest.mark.timeout(120)
def test_a_killed_worker_is_named(start_demo: StartDemo, home: Path) -> None:
    """What was said was that Redis cannot be reached: the host had ended it, because a worker was gone."""
    demo = start_demo()
    wait_in_thread(lambda: bool(sandboxes(home)), "a sandbox was made", timeout_s=60)
    worker = process_of(home, "--stage eval")
    assert worker is not None

    os.kill(worker.pid, signal.SIGKILL)
    said, _ = demo.communicate(timeout=60)

    words = " ".join(said.split())
    assert demo.returncode == 1
    assert "The step did not finish: a process of the demo ended" in words
    assert "eval-0 ended with exit code -9" in words
    assert not processes_of(home)
    left = [path.name for path in (home / "run").iterdir() if path.is_socket() or SANDBOX_ID.fullmatch(path.name)]
    assert left == []


@pytest.mark.timeout(180)
def test_a_demo_whose_redis_is_killed_goes_on(start_demo: StartDemo, home: Path) -> None:
    """The keeper starts the server again, workers and trainer wait for it; only who drew the live lines gave up, and the demo with it."""
    demo = start_demo(groups=2)
    wait_in_thread(lambda: bool(sandboxes(home)), "a sandbox was made", timeout_s=60)
    server = process_of(home, "/valkey-server unixsocket:")
    assert server is not None

    server.kill()
    said, _ = demo.communicate(timeout=120)

    assert demo.returncode == 0, said
    assert "2 informative (target 2)" in said


@pytest.mark.timeout(120)
def test_a_terminal_of_the_c_locale_shows_the_demo(command: Command, environment: dict[str, str]) -> None:
    environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = command("ops.demo", "--task", "code", "--groups", "1", "--n", "2", "--slots", "8")

    assert "UnicodeEncodeError" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by code/" in " ".join(done.stdout.split())


def test_a_home_that_cannot_be_written_is_said(command: Command, environment: dict[str, str]) -> None:
    environment["ROLLSTREAM_STATE_DIR"] = "/proc/nowhere/state"

    done = command("ops.demo")

    assert done.returncode == 1
    assert "The demo cannot begin: /proc/nowhere/state: cannot be made" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr
