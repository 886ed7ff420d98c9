"""A worker that is killed while it takes a snapshot, or while it begins from one: nothing of either is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import Kind
from workers.sandbox.local.teardown import remove_nameless, sweep

PROGRAM = Path(__file__).with_name("snapshot_program.py")
ROOT = Path(__file__).parents[3]
ROUNDS = int(os.environ.get("ROLLSTREAM_KILL_ROUNDS", "1"))


def copying(scratch: Path) -> bool:
    """A snapshot has files, and not its name yet."""
    return bool(list(scratch.glob(".new-*/*/**/f1")))


def restoring(scratch: Path) -> bool:
    """There are two sandboxes, and the second has files."""
    found = [folder for folder in scratch.iterdir() if not folder.name.startswith(".")]
    sandboxes = [folder for folder in found if b'"is_snapshot": true' not in (folder / "state.json").read_bytes()]
    return len(sandboxes) > 1 and all(list(folder.glob("**/f1")) for folder in sandboxes)


def working_on(place: Path) -> list[str]:
    """Command lines and folders of processes that have anything of that place."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            said = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
            files = [os.readlink(f"/proc/{name}/fd/{number}") for number in os.listdir(f"/proc/{name}/fd")]
        except OSError:
            continue
        if int(name) != os.getpid() and (str(place).encode() in said or any(file.startswith(str(place)) for file in files)):
            found.append(f"{name}: {said[:200]!r}")
    return found


@pytest.mark.parametrize("kind_name", ["bubblewrap"])
@pytest.mark.parametrize("moment", [copying, restoring])
@pytest.mark.timeout(60 + 20 * ROUNDS)
async def test_a_killed_worker_leaves_nothing(kind_name: str, kind: Kind, place: Path, moment: Callable[[Path], bool]) -> None:
    scratch = place / "scratch"
    for _ in range(ROUNDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), kind_name, str(place), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )

        def reached() -> bool:
            try:
                return scratch.exists() and moment(scratch)
            except OSError:  # it was renamed or removed under our eyes
                return False

        await wait_until(reached, f"{moment.__name__}", timeout_s=30)
        process.send_signal(signal.SIGKILL)
        await process.wait()

        await wait_until(lambda: not working_on(place), "holders, copies and what ran inside have ended")
        await sweep(scratch, lambda owner: False)
        remove_nameless(scratch, older_s=0.0)
        assert list(scratch.iterdir()) == []
