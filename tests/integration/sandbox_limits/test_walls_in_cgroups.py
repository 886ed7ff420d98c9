"""Sandboxes in control groups as the kernel gives them here: the kernel ends what goes over, and no group is left behind.

Needs groups that this user may write, as `ops/launcher/as_test_user.py` gives some, or `systemd-run --user --scope -p Delegate=yes`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import WALLED
from tests.integration.sandbox_limits.conftest import OpenProvider, an_owner
from workers.sandbox import Limits
from workers.sandbox.limits import find_cgroups
from workers.sandbox.local import sweep
from workers.sandbox.local.groups import GROUPS_FILE

MIB = 1024**2
EAT = "python3 -c 'x = bytearray(300 << 20)'"
OWNER = """
import asyncio, sys
from pathlib import Path
from workers.sandbox import Isolation, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

async def main():
    place = Path(sys.argv[1])
    async with LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here") as provider:
        owner = SandboxOwner(job_id="r:1", attempt=1, boot_id="b")
        async with await provider.start(SandboxSpec(isolation=Isolation.NONE), owner) as sandbox:
            await sandbox.shell().run("true", timeout_s=10)
            print("folder", sandbox.handle.folder, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def groups_are_to_be_had() -> None:
    found = find_cgroups()
    found.close()
    if not {"memory", "pids"} <= found.bases.keys():
        pytest.skip(f"no control groups that this user may make: {found.missing}")


def groups_of(folder: Path) -> list[Path]:
    return [Path(line) for line in (folder / GROUPS_FILE).read_text().splitlines()]


def members(groups: Iterable[Path]) -> set[int]:
    return {int(word) for group in groups for word in (group / "cgroup.procs").read_text().split()}


async def test_the_kernel_ends_what_goes_over_and_neither_the_sandbox_nor_its_neighbour(open_provider: OpenProvider) -> None:
    provider = await open_provider()
    spec = replace(WALLED, limits=Limits(sandbox_memory_bytes=160 * MIB, memory_bytes=2048 * MIB))
    async with await provider.start(spec, an_owner()) as sandbox, await provider.start(WALLED, an_owner()) as neighbour:
        groups = groups_of(sandbox.folder.path)
        bomb = asyncio.create_task(sandbox.shell().run(f"{EAT} | {EAT}; echo ${{PIPESTATUS[*]}}", timeout_s=30))
        while not bomb.done():
            assert (await neighbour.exec("echo well", timeout_s=30)).stdout == b"well\n"
        result = await bomb

        assert result.output.splitlines()[-1] == "137 137"
        assert any("the kernel killed" in notice for notice in result.notices)
        assert (await sandbox.use()).enforced["memory"].startswith("cgroup v")
        inside = members(groups)
        assert inside  # the shell, at least
        assert sandbox.keeper is not None
        assert sandbox.keeper.pid not in inside  # the kernel must not choose it
    assert not any(group.exists() for group in groups)


async def test_groups_of_an_owner_that_was_killed_are_ended_by_who_tears_the_sandbox_down(place: Path) -> None:
    """Also what is in them and descends from nobody we know: what is in a sandbox's group is that sandbox's."""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, str(place), stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    while not (line := (await owner.stdout.readline()).decode()).startswith("folder "):  # log lines
        assert line
    folder = Path(line.split()[1])
    groups = groups_of(folder)
    stray = await asyncio.create_subprocess_exec("sleep", "100")
    for group in groups:
        (group / "cgroup.procs").write_text(str(stray.pid))

    owner.kill()
    await owner.wait()
    report = await sweep(place / "s", lambda owner: False)

    assert (report.removed, report.failed) == ((folder.name,), ())
    assert await stray.wait() == -9
    assert not any(group.exists() or group.parent.exists() for group in groups)
