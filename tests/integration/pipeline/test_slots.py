"""Never more works at once than there are slots, and what was delivered beyond them goes back at once, uncounted."""

from __future__ import annotations

import pytest

from pipeline.attempts import Slots
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.settings import QueueSettings
from pipeline.testing import a_template, wait_until
from tests.integration.pipeline.crew import Crew, HeldWork, passes

pytestmark = pytest.mark.one_server


async def test_streams_that_deliver_together_do_not_overfill_a_worker(crew: Crew) -> None:
    """`XREADGROUP COUNT 1` over two streams delivers two entries. With one slot free both were begun, so an INIT worker of two classes
    (and a RUN worker with a lane) worked on more than it had room for: sandboxes beyond the memory of its node."""
    for number, capability in enumerate(("none", "isolated", "isolated+network")):
        await crew.add(5, start=10 * number, template=a_template(capability=capability))
    work = HeldWork()

    crew.start(Stage.INIT, work, slots=2, capabilities=("none", "isolated", "isolated+network"))
    await wait_until(lambda: len(work.running) == 2, "both slots work")
    work.may_end.set()

    results = await crew.results(15)
    assert work.most == 2
    assert {record["out"] for record in results} == {"ok"}
    assert {(await crew.job(record["job"]))["failed"] + (await crew.job(record["job"]))["lost"] for record in results} == {"00"}
    assert await crew.audit.all_ended("run1", crew.units) == []


async def test_what_was_delivered_beyond_the_slots_is_there_for_others_at_once(crew: Crew) -> None:
    """Not at the end of a lease: what one worker has no room for, its neighbour takes."""
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})
    for number, capability in enumerate(("none", "isolated")):
        await crew.add(1, start=10 * number, template=a_template(capability=capability))
    narrow, wide = HeldWork(), HeldWork()
    crew.start(Stage.INIT, narrow, node="narrow", slots=1, capabilities=("none", "isolated"))
    await wait_until(lambda: narrow.running, "the narrow one works")

    crew.start(Stage.INIT, wide, node="wide", slots=1, capabilities=("none", "isolated"))

    await wait_until(lambda: wide.running, "its neighbour has the other job")
    assert (narrow.most, wide.most) == (1, 1)
    narrow.may_end.set()
    wide.may_end.set()
    assert {(record["out"], record["att"]) for record in await crew.results(2)} == {("ok", "1")}


async def test_shards_share_the_slots_of_a_process(quick: QueueSettings, crew: Crew) -> None:
    """Each shard has a reader of its own, and both may be delivered a job for the last slot in the same moment."""
    crew.settings = quick.model_copy(update={"shards": 2})
    runs = ("run1", "run4")  # one on each shard
    for run in runs:
        await crew.connect(run)
        await crew.add(12, run=run)
    work = HeldWork()

    crew.start(Stage.INIT, work, slots=3)
    await wait_until(lambda: len(work.running) == 3, "all slots work")
    work.may_end.set()

    for run in runs:
        assert {record["out"] for record in await crew.results(12, run=run)} == {"ok"}
    assert work.most == 3


async def test_a_full_worker_claims_nothing(crew: Crew) -> None:
    await crew.add(6)
    work = HeldWork()
    crew.start(Stage.INIT, work, slots=2)
    await wait_until(lambda: len(work.running) == 2, "its slots are full")

    assert len(await crew.pending()) == 2
    crew.start(Stage.INIT, passes, node="other")

    async def went_on() -> bool:
        return int(await ask(crew.client, "XLEN", crew.keys.stage_stream(Stage.RUN))) == 4

    await wait_until(went_on, "the other worker did the rest")
    assert len(work.begun) == 2


async def test_a_worker_that_is_allowed_fewer_jobs_than_it_has_keeps_them_and_claims_none(crew: Crew) -> None:
    """Its limit fell. When it is allowed more it claims at once, not at the end of some wait."""
    await crew.add(6)
    allowed = 3
    room = Slots(4, lambda: allowed)
    work = HeldWork()
    crew.start(Stage.INIT, work, slots=4, room=room)
    await wait_until(lambda: len(work.running) == 3, "as many as are allowed")

    allowed = 1
    assert room.free == 0
    first = next(iter(work.running.values()))
    first.verdict("user")
    await wait_until(lambda: len(work.running) == 2, "one of them has ended")
    assert len(await crew.pending()) == 2

    allowed = 9
    room.changed()

    await wait_until(lambda: len(work.running) == 4, "all slots work")
    work.may_end.set()
    outcomes = [record["out"] for record in await crew.results(6)]
    assert sorted(outcomes) == ["cancelled"] + ["ok"] * 5
    assert work.most == 4
