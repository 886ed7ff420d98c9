"""The command that builds the walls is killed in the middle of a start: that fails at once, says why, and leaves nothing.

Walls stand by their command: where it ends before PID 1 has said that they do, they never will. What it had cloned may hang for good by
then, with the descriptor in its hand by which PID 1 would say so; the end of that descriptor tells nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import OneImage, program_of, usable
from tests.integration.sandbox_life.node_service import GatedBackend, backend_of
from tests.integration.sandbox_life.nodes import an_owner
from workers.sandbox import Isolation, SandboxSpec, SandboxStartError
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.backend import Backend, Place, Walls
from workers.sandbox.local.environment import MARK
from workers.sandbox.local.folder import SANDBOX_ID, SandboxFolder
from workers.sandbox.local.identity import marked_processes
from workers.sandbox.process import ProcessBackend

TOLD_S = 10.0
"""Of the minute that PID 1 is given to say that the walls stand."""
LEAVES_ONE = "sleep 600 & kill -KILL $$"
"""A shell script: a child that holds what its parent held, and the parent killed."""
BETWEEN = 'mkfifo "$1/go"; exec 57<>"$1/go" 58>"$1/cloned"; shift; exec "$@"'
"""A shell script: FOLDER COMMAND..."""


class LeavingBackend(ProcessBackend):
    """Whose command ends by a kill, and leaves a process that does nothing."""

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        return Walls(argv=("/bin/bash", "-c", LEAVES_ONE), env={"PATH": os.defpath, MARK: place.folder.name})


class BetweenBackend(BubblewrapBackend):
    """bwrap, held between its clone and the word to that to go on: the clone waits for it, and sees no end of its parent."""

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        walls = super().command(place, spec, image, pid1)
        assert walls is not None
        program, *options = (word for word in walls.argv if word != "--disable-userns")  # which cannot be had together
        held = ("--userns-block-fd", "57", "--info-fd", "58")
        return replace(walls, argv=("/bin/bash", "-c", BETWEEN, "between", str(place.folder), program, *held, *options))


def local(backend: Backend, place: Path) -> LocalSandboxes:
    return LocalSandboxes(backend, scratch_dir=place / "scratch", run_dir=place / "run", node="here", images=OneImage())


def only_sandbox(place: Path) -> SandboxFolder:
    (path,) = (path for path in (place / "scratch").iterdir() if SANDBOX_ID.fullmatch(path.name))
    return SandboxFolder.open(path)


def holder(place: Path) -> psutil.Process:
    found = only_sandbox(place).state().holder
    assert found is not None
    return psutil.Process(found.pid)


def builder(place: Path) -> psutil.Process:
    """The holder's own child."""
    (found,) = holder(place).children()
    return found


async def is_told_and_clean(starts: asyncio.Task[object], place: Path, why: str) -> None:
    async with asyncio.timeout(TOLD_S):
        with pytest.raises(SandboxStartError, match=why):
            await starts
    assert list((place / "scratch").iterdir()) == list((place / "run").iterdir()) == []


async def test_a_builder_that_leaves_a_process_is_not_waited_for(place: Path) -> None:
    """The holder waited for the end of a descriptor that the process left behind had too: a minute, for nothing."""
    async with local(LeavingBackend(), place) as provider:
        starts = asyncio.create_task(provider.start(SandboxSpec(isolation=Isolation.NONE), an_owner()))

        await is_told_and_clean(starts, place, "it ended with signal 9")


@pytest.mark.parametrize(("victim", "why"), [("builder", "it ended with signal 9"), ("holder", "the process that held it ended")])
async def test_a_bwrap_killed_before_its_clone_may_go_on_is_told(place: Path, victim: str, why: str) -> None:
    """Some hundred microseconds of each start; by a kill of bwrap alone, or of all above. The clone reads a counter that nobody adds to any
    more, for ever."""
    kind = usable("bubblewrap")
    async with local(BetweenBackend(Path(program_of("bubblewrap")[0])), place) as provider:
        starts = asyncio.create_task(provider.start(kind.spec, an_owner()))
        await wait_until(lambda: any(path.stat().st_size for path in (place / "scratch").glob("*/cloned")), "bwrap has cloned")
        word = only_sandbox(place).sandbox_id
        assert len(marked_processes(MARK, word)) == 2

        (builder(place) if victim == "builder" else holder(place)).kill()

        await is_told_and_clean(starts, place, why)
        assert not marked_processes(MARK, word)


@pytest.mark.parametrize("backend", ["bubblewrap", "apptainer"])
async def test_a_builder_killed_before_pid_1_is_ready_is_told(place: Path, backend: str) -> None:
    """PID 1 is there already, and is to end with it."""
    kind = usable(backend)
    gate = place / "gate"
    gate.mkdir()
    os.mkfifo(gate / "go")
    gated = GatedBackend(backend_of(backend, Path(program_of(backend)[0])), "pid1", gate)
    async with local(gated, place) as provider:
        starts = asyncio.create_task(provider.start(kind.spec, an_owner()))
        await wait_until((gate / "reached").exists, "PID 1 is held", timeout_s=30)
        word = only_sandbox(place).sandbox_id

        builder(place).kill()

        await is_told_and_clean(starts, place, "it ended with signal 9")
        assert not marked_processes(MARK, word)
