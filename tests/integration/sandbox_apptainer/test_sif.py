"""An image in one file is mounted by a process of its own, which Apptainer leaves behind when it is killed: it is found by its record."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_apptainer.conftest import StartSandbox
from tests.integration.sandbox_life.killed_nodes import ROUNDS, a_node
from workers.sandbox import Sandbox
from workers.sandbox.local import sweep
from workers.sandbox.local.environment import MARK
from workers.sandbox.local.folder import SandboxFolder
from workers.sandbox.local.identity import ProcessIdentity, is_running, marked_processes, recorded_processes

TRIES = 8


def helpers_of(sandbox: Sandbox) -> list[ProcessIdentity]:
    lines = SandboxFolder.open(Path(sandbox.handle.folder)).children_file.read_text().splitlines()
    return [process for process in recorded_processes(lines) if "squashfuse" in os.readlink(f"/proc/{process.pid}/exe")]


async def test_a_sif_runs_and_its_helper_ends_with_it(start: StartSandbox, sif: Path) -> None:
    sandbox = await start(sif)
    result = await sandbox.exec("echo here >mine; cat mine; ls /usr/bin/bash", timeout_s=10)
    assert (result.stdout_text, result.stderr_text) == ("here\n/usr/bin/bash\n", "")
    helpers = helpers_of(sandbox)
    assert len(helpers) == 1
    assert helpers[0] in marked_processes(MARK, sandbox.handle.sandbox_id), "one that is not yet recorded is found by its mark"

    await sandbox.stop()

    assert not any(map(is_running, helpers))


async def _left_without_holder(sandbox: Sandbox) -> list[ProcessIdentity]:
    """The helpers of a sandbox whose holder was killed.

    One that is busy does not notice that its mount is gone, and stays; one that stands still never does, but for a kernel that continues
    and hangs up what stands still in a group that its holder's end left alone.
    """
    helpers = helpers_of(sandbox)
    holder = SandboxFolder.open(Path(sandbox.handle.folder)).state().holder
    assert helpers
    assert holder is not None
    for helper in helpers:
        os.kill(helper.pid, signal.SIGSTOP)
    os.kill(holder.pid, signal.SIGKILL)
    await sandbox.wait_gone()
    return helpers


async def test_the_helper_of_a_killed_holder_is_ended_by_the_sweep(start: StartSandbox, sif: Path, place: Path) -> None:
    """It has no mark in its environment, left the group of who started it, and is then nobody's child: only its record tells."""
    for _ in range(TRIES):
        if any(map(is_running, helpers := await _left_without_holder(await start(sif)))):
            break
    else:
        pytest.fail("no helper outlived its holder: this test shows nothing")
    report = await sweep(place / "scratch", lambda owner: False)

    assert report.failed == ()
    await wait_until(lambda: not any(map(is_running, helpers)), "the helper has ended")


@pytest.mark.parametrize("victims", ["worker", "service", "worker service below", "below", "builder"])
async def test_no_helper_is_left_whoever_is_killed_and_when(sif: Path, place: Path, victims: str) -> None:
    """Helpers are looked for among all processes below this one (`tests/sandbox_leftovers.py`), not by records of the product: one that was
    started and not yet written down is found as well."""
    async with a_node("apptainer", place, str(sif)) as node:
        moments = ["starts", "attaches", "runs", "parks", "stops"]
        for moment in moments * ROUNDS if ROUNDS > 1 else node.chance.sample(moments, 1):
            when = await node.chance_kill(moment, tuple(victims.split()))

            if "service" in victims:
                await node.serve()
            await node.is_clean(when)
