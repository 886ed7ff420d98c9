"""What is kept ready: handed out once, alive, to whom it belongs by then on disk; and nothing of it is left when the node stops."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import Kind
from tests.integration.sandbox_life.nodes import PLAIN, WORKER, an_owner, ignored, left, moody, settings
from workers.sandbox import SandboxGone, SandboxOwner, SandboxSpec, StaleAttempt
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.attempts import POOL_JOB
from workers.sandbox.local.folder import SandboxFolder, sandbox_paths
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.service import NodeSandboxes
from workers.sandbox.service.warm_pool import WarmPool, key_of


class Shelf:
    """A source that makes real sandboxes, and may be told to wait or to fail as it hands one over."""

    def __init__(self, provider: LocalSandboxes) -> None:
        self.provider = provider
        self.made = 0
        self.before_giving = asyncio.Event()
        self.before_giving.set()
        self.gives = asyncio.Event()

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox:
        self.made += 1
        return await self.provider.start(spec, owner)

    async def hand_over(self, sandbox: LocalSandbox, owner: SandboxOwner) -> None:
        self.gives.set()
        await self.before_giving.wait()
        await self.provider.hand_over(sandbox, owner)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Room:
    is_there = True

    def __call__(self) -> bool:
        return self.is_there


@asynccontextmanager
async def a_pool(
    source: Shelf, *, per_spec: int, clock: Clock | None = None, room: Room | None = None, ping_s: float = 20.0
) -> AsyncIterator[WarmPool]:
    """A living one has long to answer: the machine that tests run on may be busy."""
    pool = WarmPool(source, per_spec=per_spec, ttl_s=600.0, has_room=room or Room(), ping_s=ping_s, clock=clock or Clock())
    filling = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        filling.cancel()
        await asyncio.wait((filling,))
        await pool.empty()
        assert filling.cancelled() or filling.exception() is None


async def filled(pool: WarmPool, spec: SandboxSpec, count: int) -> None:
    """Asks once, in vain, and waits until it is filled for that spec."""
    assert await pool.take(spec, an_owner()) is None
    await wait_until(lambda: pool.ready == count, f"{count} stand ready", timeout_s=30)


def owners_on_disk(place: Path) -> list[str]:
    return sorted(SandboxFolder.open(path).record.job_id for path in sandbox_paths(place / "scratch"))


async def test_each_is_handed_out_once_and_belongs_to_its_owner_by_then(place: Path) -> None:
    """Two jobs ask in the same moment: both getting the same one would put one job's files before the other."""
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=2) as pool:
        await filled(pool, PLAIN, 2)
        assert owners_on_disk(place) == [POOL_JOB, POOL_JOB]

        got = await asyncio.gather(*(pool.take(PLAIN, an_owner(f"job-{number}")) for number in range(3)))

        taken = [sandbox for sandbox in got if sandbox is not None]
        assert len({sandbox.handle.sandbox_id for sandbox in taken}) == len(taken) == 2
        assert len([job for job in owners_on_disk(place) if job.startswith("job-")]) == 2
        for sandbox in taken:
            assert await sandbox.list() == ()
            await sandbox.kill()
    assert left(place) == []


async def test_it_is_filled_again_and_never_by_one_that_was_used(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        first = await pool.take(PLAIN, an_owner())
        assert first is not None
        await first.write_file("mine", b"")
        await wait_until(lambda: pool.ready == 1, "it is filled again")

        second = await pool.take(PLAIN, an_owner())

        assert second is not None
        assert second.handle != first.handle
        await first.stop()
        assert await second.list() == ()
        await second.stop()


async def test_one_for_another_spec_is_not_handed_out(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)

        assert await pool.take(SandboxSpec(isolation=PLAIN.isolation, env={"SEED": "1"}), an_owner()) is None


def test_the_order_of_variables_makes_no_other_spec() -> None:
    assert key_of(SandboxSpec(env={"A": "1", "B": "2"})) == key_of(SandboxSpec(env={"B": "2", "A": "1"}))
    assert key_of(SandboxSpec(env={"A": "1"})) != key_of(SandboxSpec(env={"A": "2"}))


async def test_one_that_has_died_is_not_handed_out(place: Path) -> None:
    """Its shell was frozen while it stood ready; the next one is asked instead."""
    provider, _ = moody(place)
    room = Room()
    async with provider, a_pool(Shelf(provider), per_spec=2, room=room, ping_s=2.0) as pool:
        await filled(pool, PLAIN, 2)
        dead, alive = (sandbox.sandbox for sandbox in pool.on_shelf(PLAIN))
        shell = int((await dead.shell().run("echo $$", timeout_s=10)).output)
        os.kill(shell, signal.SIGSTOP)  # it still stands there, and answers nothing

        taken = await pool.take(PLAIN, an_owner("job"))

        assert taken is alive
        await dead.wait_gone()
        await wait_until(lambda: owners_on_disk(place).count("job") == 1, "of what the job was given the living one is left")
        await taken.stop()


async def test_one_whose_shell_was_killed_has_a_new_one_by_the_time_it_is_handed_out(place: Path) -> None:
    """Nobody has used that shell, so nothing of it is lost, and its next owner is told of nothing."""
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        [ready] = pool.on_shelf(PLAIN)
        shell = int((await ready.sandbox.shell().run("echo $$", timeout_s=10)).output)
        os.kill(shell, signal.SIGKILL)
        await wait_until(lambda: not psutil.pid_exists(shell), "it is gone")

        taken = await pool.take(PLAIN, an_owner())

        assert taken is ready.sandbox
        first = await taken.shell().run("echo $$", timeout_s=10)
        assert (first.status, first.restarted) == ("ok", False)
        assert int(first.output) != shell
        await taken.stop()


async def test_the_shell_that_stands_ready_has_the_variables_and_the_folder_of_the_job(kind: Kind, place: Path) -> None:
    provider = kind.open(place)
    assert isinstance(provider, LocalSandboxes)
    spec = replace(kind.spec, env={"SEED": "42"}, workdir="/job/here" if kind.walls else "")
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, spec, 1)

        taken = await pool.take(spec, an_owner())

        assert taken is not None
        seen = await taken.shell().run('echo "$SEED"; pwd', timeout_s=10)
        assert seen.output.splitlines() == ["42", taken.workdir]
        assert not kind.walls or taken.workdir == "/job/here"
        await taken.stop()


async def test_a_node_without_a_pool_keeps_nothing_ready(place: Path) -> None:
    """It is off unless it is asked for."""
    provider, backend = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        for _ in range(2):
            await (await node.start(PLAIN, an_owner(), WORKER, ignored)).sandbox.kill()

        assert (backend.asked, node.warm.ready) == (2, 0)
    assert left(place) == []


async def test_who_is_cancelled_while_one_is_handed_over_leaves_nothing(place: Path) -> None:
    """It is off the shelf and not yet anybody's: dropped there it would live until the node stops."""
    provider, _ = moody(place)
    source = Shelf(provider)
    async with provider, a_pool(source, per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        [found] = pool.on_shelf(PLAIN)
        source.before_giving.clear()
        source.gives.clear()
        taking = asyncio.create_task(pool.take(PLAIN, an_owner()))
        await source.gives.wait()

        taking.cancel()

        with pytest.raises(asyncio.CancelledError):
            await taking
        await found.sandbox.wait_gone()
        await wait_until(lambda: found.sandbox.handle.sandbox_id not in os.listdir(place / "scratch"), "its folder is gone")


async def test_a_later_attempt_ends_what_an_earlier_one_got_from_the_pool(place: Path) -> None:
    """What came from the pool is not found by the job's name in its id: its record says whose it is."""
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        first = await pool.take(PLAIN, an_owner("job", attempt=1))
        assert first is not None

        second = await provider.start(PLAIN, an_owner("job", attempt=2))

        await first.wait_gone()
        await second.stop()


async def test_an_earlier_attempt_gets_nothing_from_the_pool_after_a_later_one(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        later = await provider.start(PLAIN, an_owner("job", attempt=2))

        with pytest.raises(StaleAttempt):
            await pool.take(PLAIN, an_owner("job", attempt=1))

        assert "job" in owners_on_disk(place)
        await later.stop()


async def test_one_that_was_handed_out_and_lost_is_never_met_again(place: Path) -> None:
    """Its shell ran before it had an owner: what the owner changed would be missing from its record, and be met by the next attempt."""
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        taken = await pool.take(PLAIN, an_owner("job", attempt=1))
        assert taken is not None
        await taken.shell().run("echo half >file", timeout_s=10)
        os.kill(holder_of(taken), signal.SIGKILL)
        await taken.wait_gone()

        with pytest.raises(SandboxGone, match="attempt 1 changed it and was lost"):
            await provider.attach(taken.handle, an_owner("job", attempt=2))
        await taken.kill()


async def test_a_later_attempt_that_was_given_one_stands_in_it_at_once(place: Path) -> None:
    """What was written while it was nobody's says another attempt than its owner's: that of the owner counts."""
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        owner = an_owner("job", attempt=3)
        taken = await pool.take(PLAIN, owner)
        assert taken is not None

        found = SandboxFolder.open(place / "scratch" / taken.handle.sandbox_id)

        assert found.record.owner == owner
        assert (found.state().seen_attempt, found.state().changed_by) == (3, 3)
        with pytest.raises(StaleAttempt):
            await provider.start(PLAIN, an_owner("job", attempt=2))
        handle = await taken.park()
        assert (found.state().seen_attempt, found.state().changed_by) == (3, 0)
        with pytest.raises(StaleAttempt):
            await provider.attach(handle, an_owner("job", attempt=2))
        async with await provider.attach(handle, an_owner("job", attempt=3)) as sandbox:
            await sandbox.write_file("file", b"")
            assert found.state().changed_by == 3


async def test_one_that_was_handed_out_is_parked_and_attached_as_any_other(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, a_pool(Shelf(provider), per_spec=1) as pool:
        await filled(pool, PLAIN, 1)
        taken = await pool.take(PLAIN, an_owner("job", attempt=1))
        assert taken is not None
        await taken.write_file("file", b"by init")

        async with await provider.attach(await taken.park(), an_owner("job", attempt=2)) as sandbox:
            assert await sandbox.read_file("file") == b"by init"


async def test_old_ones_are_ended(place: Path) -> None:
    provider, _ = moody(place)
    clock = Clock()
    async with provider, a_pool(Shelf(provider), per_spec=1, clock=clock) as pool:
        await filled(pool, PLAIN, 1)
        [old] = pool.on_shelf(PLAIN)
        clock.now_s = 601.0

        assert await pool.take(PLAIN, an_owner()) is None

        await old.sandbox.wait_gone()
        await wait_until(lambda: pool.ready == 1, "a fresh one stands ready")


async def test_a_node_that_runs_short_keeps_nothing_ready(place: Path) -> None:
    provider, _ = moody(place)
    room = Room()
    source = Shelf(provider)
    async with provider, a_pool(source, per_spec=1, room=room) as pool:
        await filled(pool, PLAIN, 1)
        room.is_there = False

        await pool.tidy()

        assert pool.ready == 0
        assert source.made == 1


async def test_a_node_that_stops_leaves_none(kind: Kind, place: Path) -> None:
    provider = kind.open(place)
    assert isinstance(provider, LocalSandboxes)
    async with provider, NodeSandboxes(provider, settings(warm=2)) as node:
        attached = await node.start(kind.spec, an_owner(), WORKER, ignored)
        await attached.sandbox.kill()
        await wait_until(lambda: node.warm.ready == 2, "two stand ready", timeout_s=60)

        await node.drain(0.0)

        assert left(place) == []
    assert left(place) == []


def holder_of(sandbox: LocalSandbox) -> int:
    holder = sandbox.folder.state().holder
    assert holder is not None
    return holder.pid
