"""A holder that is kept ready: used once, gone with whoever keeps it, and nobody's until then."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from workers.sandbox import Isolation, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.holder_client import Holder
from workers.sandbox.local.identity import ProcessIdentity, identify, is_running
from workers.sandbox.local.spare_holder import SpareHolder
from workers.sandbox.process import ProcessBackend
from workers.sandbox.spec import Limits

SPEC = SandboxSpec(isolation=Isolation.NONE)
KEEPS_ONE = """
import asyncio, sys
from workers.sandbox.local.spare_holder import SpareHolder
async def main():
    spare = SpareHolder()
    spare.refill()
    await spare.settle()
    print(spare.ready.identity.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def an_owner() -> SandboxOwner:
    return SandboxOwner(job_id=f"run:{secrets.token_hex(4)}", attempt=1, boot_id="boot")


def sandboxes(place: Path) -> LocalSandboxes:
    return LocalSandboxes(ProcessBackend(), scratch_dir=place / "scratch", run_dir=place / "run", node="here", keeps_spare=True)


def identity_of(holder: Holder | None) -> ProcessIdentity:
    assert holder is not None
    identity = holder.identity
    assert identity is not None
    return identity


async def until_ready(provider: LocalSandboxes) -> ProcessIdentity:
    assert provider.spare is not None
    await provider.spare.settle()
    return identity_of(provider.spare.ready)


async def test_a_start_takes_the_one_that_is_ready_and_the_next_is_launched_behind_it(place: Path) -> None:
    async with sandboxes(place) as provider:
        first = await until_ready(provider)
        one = await provider.start(SPEC, an_owner())
        second = await until_ready(provider)
        two = await provider.start(SPEC, an_owner())
        third = await until_ready(provider)

        holders = [one.folder.state().holder, two.folder.state().holder]
        assert holders == [first, second]
        assert (await two.exec("echo $PPID", timeout_s=10)).stdout_text.strip() == str(second.pid)
        assert "holder" not in one.folder.log_file.read_text(), "what it said went to its sandbox"
        await one.kill()
        assert (await two.exec("echo on", timeout_s=10)).stdout_text == "on\n"
    assert not any(map(is_running, (first, second, third)))


async def test_one_that_was_killed_is_not_handed_out(place: Path) -> None:
    async with sandboxes(place) as provider:
        spare = await until_ready(provider)
        keeper = provider.spare
        assert keeper is not None
        os.kill(spare.pid, signal.SIGKILL)
        await wait_until(lambda: keeper.ready is None, "its end was seen")

        sandbox = await provider.start(SPEC, an_owner())

        assert sandbox.folder.state().holder not in (spare, None)
        assert await until_ready(provider) != spare


async def test_it_ends_with_a_worker_that_is_killed() -> None:
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", KEEPS_ONE, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    spare = identify(int(await worker.stdout.readline()))
    assert spare is not None

    worker.kill()
    await worker.wait()

    await wait_until(lambda: not is_running(spare), "the spare holder has ended")


async def test_it_holds_nothing_of_whoever_keeps_it(place: Path) -> None:
    """It is launched beside sandboxes that come up: an inherited lease would outlive its sandbox."""
    async with sandboxes(place) as provider:
        sandbox = await provider.start(SPEC, an_owner())
        spare = await until_ready(provider)

        opened = {file.path for file in psutil.Process(spare.pid).open_files()}

        assert not any(path.startswith(str(sandbox.folder.path)) for path in opened)


async def test_a_start_whose_folder_is_gone_ends_the_one_it_took(place: Path) -> None:
    spare = SpareHolder()
    spare.refill()
    await spare.settle()
    holder = spare.take()
    identity = identity_of(holder)

    with pytest.raises(FileNotFoundError):
        await Holder.start(
            "id", leases=(), children_file=place / "none" / "children", log_file=place / "log", limits=Limits(), spare=holder
        )

    assert not is_running(identity)
    assert spare.take() is None
    await spare.close()
    spare.refill()
    await spare.settle()
    assert spare.ready is None, "closed is for good"
