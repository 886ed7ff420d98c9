"""The installed command, as two launchers start it in the same moment, and as it is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner
from tests.integration.sandbox_service.nodes import PLAIN
from workers.sandbox import SandboxGone, SandboxTaken
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.service.server import SOCKET_NAME
from workers.sandbox.service.serving import OPEN_FILES
from workers.sandbox.service.settings import SANDBOXES

ROOT = Path(__file__).parents[3]
QUICKLY_S = 5.0
"""A worker hears of the end of its service from the kernel, in milliseconds, and not from a limit: the shortest is ten seconds."""
EXIT_ALREADY_SERVED = 4
FEW = 200
"""Open files, where nobody asks for more."""


@asynccontextmanager
async def started(place: Path, count: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    command = ["/bin/sh", "-c", f'ulimit -Sn {FEW}; exec "$@"', "sh"]
    command += [sys.executable, "-m", "ops.cli", "sandbox", "serve", "--backend", "process"]
    command += ["--run-dir", str(place / "run"), "--scratch-dir", str(place / "s"), "--grace-s", "0"]
    processes = [
        await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, "HOME": str(place)}, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def serving(place: Path) -> None:
    await wait_until((place / "run" / SOCKET_NAME).exists, "it serves", timeout_s=60)


def sandboxes(place: Path) -> list[str]:
    return [path.name for path in (place / "s" / SANDBOXES).iterdir()]


async def test_of_two_that_start_at_once_one_serves_and_the_other_says_who_does(place: Path) -> None:
    async with started(place, 2) as processes:
        waits = {asyncio.create_task(process.wait()): process for process in processes}
        done, going = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        [loser], [winner] = ([waits[task] for task in tasks] for tasks in (done, going))
        assert loser.stderr is not None
        said = (await loser.stderr.read()).decode()

        assert loser.returncode == EXIT_ALREADY_SERVED
        holder = re.search(r"is served already, by process (\d+|\(unknown\)):", said)
        assert holder is not None, said
        assert holder[1] in (str(winner.pid), "(unknown)")
        await serving(place)
        async with RemoteSandboxes(place / "run") as remote:
            assert remote.hello["pid"] == winner.pid
        winner.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(winner.wait(), 30) == 0
        assert not (place / "run" / SOCKET_NAME).exists()
        assert sandboxes(place) == []


async def test_a_sandbox_is_gone_with_its_service_also_for_a_link_that_stood_ready(place: Path) -> None:
    """A connection that was made for the next sandbox had not heard of the end yet: to attach over it said that the node was unavailable,
    as if the sandbox could still be had."""
    async with started(place, 1) as [service]:
        await serving(place)
        async with RemoteSandboxes(place / "run") as remote:
            handle = await (await remote.start(PLAIN, an_owner("parked"))).park()
            await wait_until(lambda: remote.spare.ready is not None, "a connection stands ready")

            service.kill()
            with suppress(ChildProcessError):  # asyncio's own thread was faster
                os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  # the loop is to hear nothing
            with pytest.raises(SandboxGone):
                await remote.attach(handle, an_owner("parked", attempt=2))


async def test_a_worker_whose_service_is_killed_hears_it_at_once_and_the_next_one_sweeps(place: Path) -> None:
    async with started(place, 1) as [first]:
        await serving(place)
        async with RemoteSandboxes(place / "run") as remote:
            epoch = remote.epoch
            handle = await (await remote.start(PLAIN, an_owner("parked"))).park()
            sandbox = await remote.start(PLAIN, an_owner("attached"))
            shell = asyncio.create_task(sandbox.shell().run("echo $$ >pid; sleep 600", timeout_s=600))
            pid_file = Path(sandbox.handle.folder) / "home" / "pid"
            await wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the command runs")

            first.kill()
            at_s = time.monotonic()

            with pytest.raises(SandboxTaken):
                await shell
            assert await remote.lost
            assert time.monotonic() - at_s < QUICKLY_S
            with pytest.raises(SandboxGone):
                await remote.attach(handle, an_owner("parked", attempt=2))
        await first.wait()
        left = sandboxes(place)
    (place / "run" / SOCKET_NAME).unlink()  # it was killed: only its lock has gone with it

    async with started(place, 1) as [second]:
        await serving(place)
        async with RemoteSandboxes(place / "run") as remote:
            assert handle.sandbox_id in left
            assert remote.epoch not in ("", epoch)
            few, most = psutil.Process(second.pid).rlimit(psutil.RLIMIT_NOFILE)
            assert FEW < few == min(most, OPEN_FILES), "a node with many sandboxes would run out of open files"
            async with await remote.start(PLAIN, an_owner()) as another:
                assert (await another.exec("ulimit -n", timeout_s=10)).stdout == b"1024\n"
            assert sandboxes(place) == []
            with pytest.raises(SandboxGone):
                await remote.attach(handle, an_owner("parked", attempt=2))
        second.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(second.wait(), 30) == 0
