"""A validation and training share what their run gets, job for job, whichever is deeper."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import Accepted
from pipeline.scripts.run_calls import RunScripts
from pipeline.testing import a_group, a_template

from .conftest import Connect, Run

VALIDATION = "v1-0"


async def train(run: Run, jobs: int, *, prompt: str = "e0-0", priority: int = 0) -> None:
    for at in range(0, jobs, 1000):
        group = a_group(run.name, prompt=f"{prompt}-{at}", members=min(1000, jobs - at))
        await run.accept(group, template=a_template(priority=priority), window=0)


async def validate(run: Run, jobs: int, *, prompt: str = VALIDATION, priority: int = 0) -> None:
    """As the client does it."""
    scripts = RunScripts(run.client, run.audit.keys)
    opened = await scripts.open_validation(run.name, run.incarnation, index=1, digest="d", base=0, version="")
    for at in range(0, jobs, 1000):
        unit = a_group(run.name, prompt=f"{prompt}-{at}", members=min(1000, jobs - at))
        accepted = await run.scripts.accept(
            run.name,
            run.incarnation,
            a_template(priority=priority),
            "tpl1",
            b"template",
            [unit],
            max_waiting=100_000,
            window=0,
            validation=opened.serial,
        )
        assert accepted == [Accepted.NEW]
        run.units.append(unit)


async def admitted(run: Run) -> list[str]:
    """Lanes of the jobs that were admitted, in their order: `v` or `t`."""
    entries = await run.audit.entries(run.audit.keys.stage_stream(Stage.INIT))
    return ["v" if ".v1-" in row["job"] else "t" for row in entries]


@pytest.mark.slow
async def test_a_validation_does_not_wait_behind_a_flood_of_training(connect: Connect) -> None:
    run = await connect()
    await train(run, 20_000)
    await validate(run, 200)

    await run.scripts.admit(["none"], 400)

    assert await admitted(run) == ["v", "t"] * 200
    await run.scripts.admit(["none"], 410)
    assert Counter(await admitted(run)) == {"v": 200, "t": 210}


async def test_training_does_not_wait_behind_a_flood_of_validation(connect: Connect) -> None:
    run = await connect()
    await validate(run, 5_000)
    await train(run, 100)

    await run.scripts.admit(["none"], 200)

    assert Counter(await admitted(run)) == {"v": 100, "t": 100}
    await run.scripts.admit(["none"], 300)
    assert Counter(await admitted(run)) == {"v": 200, "t": 100}


async def test_they_take_turns_also_when_there_is_room_for_one_at_a_time(run: Run) -> None:
    """Each begun job makes room for one. A share that is rounded in each call would give one lane everything."""
    await train(run, 50)
    await validate(run, 50)

    for window in range(1, 61):
        await run.scripts.admit(["none"], window)

    assert await admitted(run) == ["v", "t"] * 30


async def test_whatever_the_room_the_shares_are_even(run: Run) -> None:
    await train(run, 300)
    await validate(run, 300)
    source, window = random.Random(3), 0

    while window < 400:
        window += source.randint(1, 7)
        await run.scripts.admit(["none"], window)

    counts = Counter(await admitted(run))
    assert abs(counts["v"] - counts["t"]) <= 1


async def test_a_lane_alone_gets_all_of_the_room(run: Run) -> None:
    await validate(run, 6)

    assert await run.scripts.admit(["none"], 10) == 6

    await train(run, 10)
    assert await run.scripts.admit(["none"], 10) == 4


async def test_priority_orders_within_a_lane_and_not_across(run: Run) -> None:
    await train(run, 2, prompt="e0-1", priority=-100)
    await train(run, 2, prompt="e0-2", priority=100)
    await validate(run, 2, prompt="v1-1", priority=-100)
    await validate(run, 2, prompt="v1-2", priority=100)

    await run.scripts.admit(["none"], 8)

    entries = await run.audit.entries(run.audit.keys.stage_stream(Stage.INIT))
    assert [row["grp"].split(".")[1][:4] for row in entries] == ["v1-2", "e0-2", "v1-2", "e0-2", "v1-1", "e0-1", "v1-1", "e0-1"]


async def test_validations_count_against_the_share_of_their_run_and_no_others(connect: Connect) -> None:
    """Two lanes are not two turns: a run gets no more by validating."""
    one, two = await connect("one"), await connect("two")
    await train(one, 300)
    await validate(one, 300)
    await train(two, 300)

    await one.scripts.admit(["none"], 320)

    assert (await one.audit.counter("one", "inflight"), await two.audit.counter("two", "inflight")) == (160, 160)


async def test_a_waiting_validation_job_is_cancelled_expires_and_is_put_back_like_any_other(
    run: Run,
) -> None:
    await train(run, 4)
    await validate(run, 4)
    waiting = run.units[-1].id
    assert (await run.scripts.cancel("job", [f"{waiting}.0"], "user"))["settled"] == 1
    await ask(run.client, "ZREM", run.audit.keys.queue("run1"), f"{waiting}.1")

    await run.scripts.reconcile("run1")

    assert await run.states() == {"waiting": 6, "ready": 1, "done": 1}
    assert await run.audit.faults("run1", run.units) == []


async def test_a_group_of_a_validation_closes_without_a_verdict(run: Run) -> None:
    """No supervisor is woken or asked; the line of each member is in its record."""
    await validate(run, 3)
    await run.scripts.admit(["none"], 3)

    await run.worker(Stage.EVAL).settle(*await run.reach(Stage.EVAL))

    group = await run.audit.hash(run.audit.keys.group(run.units[0].id))
    assert (group["st"], group["val"]) == ("closed", "1")
    assert await run.audit.all_ended("run1", run.units) == []
    assert await run.audit.counter("run1", "groups.validation") == 1
    assert not await ask(run.client, "EXISTS", run.audit.keys.closed)


async def test_a_group_whose_close_was_lost_is_closed_by_the_janitor_without_a_verdict_too(run: Run) -> None:
    await validate(run, 2)
    await run.scripts.admit(["none"], 2)
    await run.worker(Stage.EVAL).settle(*await run.reach(Stage.EVAL))
    await ask(run.client, "HSET", run.audit.keys.group(run.units[0].id), "st", "open")
    await ask(run.client, "ZADD", run.audit.keys.open_units("run1"), 1, run.units[0].id)

    await run.scripts.reconcile("run1")

    assert await run.audit.all_ended("run1", run.units) == []
