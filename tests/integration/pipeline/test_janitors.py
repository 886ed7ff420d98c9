"""Every process has a janitor; one of them acts, whoever it is, and when that one dies another does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from pipeline.janitor import Janitor
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.streams import ensure_group
from pipeline.testing import ManualWorker, wait_until
from tests.integration.pipeline.crew import Crew, ends

pytestmark = pytest.mark.one_server


@dataclass
class Shift:
    """Janitors at work, by name."""

    crew: Crew
    janitors: dict[str, asyncio.Task[None]]
    period_s: float

    async def acting(self) -> str:
        """Who did the last round."""
        return (await self.crew.audit.hash(self.crew.keys.key("janitor"))).get("who", "")

    async def rounds(self) -> int:
        """When the last round was, by the server's clock."""
        return int((await self.crew.audit.hash(self.crew.keys.key("janitor"))).get("at", "0"))

    async def now_ms(self) -> int:
        seconds, micros = await ask(self.crew.client, "TIME")
        return int(seconds) * 1000 + int(micros) // 1000


@pytest.fixture
async def shift(crew: Crew) -> AsyncIterator[Shift]:
    """Twelve janitors of one shard."""
    stop = asyncio.Event()
    made = {f"j{number}": Janitor(crew.client, crew.scripts, crew.keys, crew.settings, f"j{number}") for number in range(12)}
    tasks = {who: asyncio.create_task(janitor.run(stop), name=who) for who, janitor in made.items()}
    yield Shift(crew, tasks, made["j0"].period_s)
    stop.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.slow
async def test_one_of_twelve_acts_and_stays(shift: Shift) -> None:
    await wait_until(shift.acting, "one acts")
    first = await shift.acting()
    seen = set()
    for _ in range(5):
        last = await shift.rounds()

        async def went_on(last: int = last) -> bool:
            return await shift.rounds() > last

        await wait_until(went_on, "the next round")
        seen.add(await shift.acting())

    assert seen == {first}


@pytest.mark.slow
async def test_another_takes_over_within_three_periods(shift: Shift) -> None:
    await wait_until(shift.acting, "one acts")
    for _ in range(3):
        dead = await shift.acting()
        shift.janitors[dead].cancel()
        last = await shift.rounds()

        async def taken_over(dead: str = dead) -> bool:
            return await shift.acting() != dead

        await wait_until(taken_over, "another acts")
        # a third of a period for the machine: it is shared
        assert await shift.rounds() - last <= (3.34 * shift.period_s) * 1000 + 100


async def test_a_lost_job_is_recovered_by_whoever_acts(crew: Crew, shift: Shift) -> None:
    (job,) = await crew.add(1)
    assert len(await ManualWorker(crew.scripts, Stage.INIT, "killed").take()) == 1
    await wait_until(shift.acting, "one acts")
    shift.janitors[await shift.acting()].cancel()

    crew.start(Stage.INIT, ends)

    (record,) = await crew.results(1)
    assert (record["job"], record["out"], (await crew.job(job))["lost"]) == (job, "ok", "1")


async def test_consumers_that_did_nothing_for_long_are_deleted_unless_they_hold_something(crew: Crew) -> None:
    """Each restart of a node under a new name leaves one a stream. Deleting one discards what is pending there, so one that holds
    something stays, and so does one whose process lives."""
    await crew.add(1)
    holder, idle, alive = (ManualWorker(crew.scripts, Stage.INIT, name) for name in ("holder", "idle", "alive"))
    assert len(await holder.take()) == 1
    for worker in (idle, alive):
        assert await worker.take() == []
    await alive.take_name()
    await ask(crew.client, "DEL", crew.keys.worker("idle"), crew.keys.worker("holder"))
    stop = asyncio.Event()
    janitor = Janitor(
        crew.client,
        crew.scripts,
        crew.keys,
        crew.settings.model_copy(update={"lease_s": 60.0}),
        "j",
        consumers_every=1,
        consumer_idle_s=0.0,
    )

    async def consumers() -> set[bytes]:
        return {info["name"] for info in await ask(crew.client, "XINFO CONSUMERS", crew.keys.stage_stream(Stage.INIT), "init")}

    assert await consumers() == {b"holder", b"idle", b"alive"}
    task = asyncio.create_task(janitor.run(stop))

    async def gone() -> bool:
        return b"idle" not in await consumers()

    await wait_until(gone, "the idle one is deleted")
    assert await consumers() == {b"holder", b"alive"}
    stop.set()
    await task
    assert len(await crew.pending()) == 1


async def test_an_empty_lane_that_nobody_reads_is_removed_without_a_warning(crew: Crew) -> None:
    """A node that has ended leaves one each time: nothing was sent back, and nobody has to do anything."""
    lane = crew.keys.stage_stream(Stage.RUN, node="gone")
    await ensure_group(crew.client, crew.keys, Stage.RUN, lane)
    janitor = Janitor(crew.client, crew.scripts, crew.keys, crew.settings, "j")

    with capture_logs() as said:
        await janitor.round(quiet=False)

    assert not await ask(crew.client, "EXISTS", lane)
    assert [(line["event"], line["log_level"]) for line in said if line["event"].startswith("lane_")] == [("lane_removed", "info")]
