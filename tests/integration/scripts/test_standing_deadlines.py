"""Deadlines of a run stand still while its engines are away or load weights (ADR 13): a job pays for its own time only."""

from __future__ import annotations

import pytest

from pipeline.errors import StaleIncarnation
from pipeline.messages import Stage
from pipeline.redis_client import ask, redis_now_ms
from pipeline.scripts.calls import new_nonce
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.testing import a_group, a_unit, wait_until

from .conftest import Run

LONG_S = 60.0
SHORT_S = 0.2
HOUR_MS = 3_600_000


def trainer(run: Run) -> TrainerScripts:
    return TrainerScripts(run.client, run.audit.keys)


async def date(run: Run, *jobs: str, in_ms: int) -> None:
    """As if these jobs had been given so much time, and no more, when they were accepted."""
    now = await redis_now_ms(run.client)
    for job in jobs:
        await ask(run.client, "HSET", run.audit.keys.job(job), "dl", now + in_ms)
        await ask(run.client, "ZADD", run.audit.keys.key("z:deadline"), now + in_ms, job)


async def stood(run: Run, *, hours: int) -> None:
    """As if the run had stood so long until now."""
    await ask(run.client, "HSET", run.audit.keys.run("run1"), "still.ms", hours * HOUR_MS)


async def passes(run: Run, ms: int) -> None:
    """Lets so much time of the server go by."""
    ends = await redis_now_ms(run.client) + ms

    async def is_over() -> bool:
        return await redis_now_ms(run.client) >= ends

    await wait_until(is_over, f"{ms} ms have passed")


async def test_no_deadline_comes_while_they_stand_and_each_comes_so_much_later(run: Run) -> None:
    units = [a_unit(prompt="waits"), a_unit(prompt="runs")]
    await run.accept(*units)
    (held,) = await run.worker(Stage.INIT).take(1)
    await date(run, *[unit.id for unit in units], in_ms=50)
    await trainer(run).stand_still("run1", 1, "h1", lease_s=LONG_S)

    await passes(run, 200)
    assert await run.scripts.expire_deadlines() == (0, 0)

    stood_s = await trainer(run).stand_still("run1", 1, "h1", lease_s=0)
    assert stood_s >= 0.2
    assert await trainer(run).stand_still("run1", 1, "h1", lease_s=0) == stood_s, "the end is said twice and counted once"
    await stood(run, hours=10)
    await date(run, *[unit.id for unit in units], in_ms=-9 * HOUR_MS)
    dated = int((await run.audit.hash(run.audit.keys.job(held.job)))["dl"])
    assert await run.scripts.expire_deadlines() == (0, 0)
    assert await ask(run.client, "ZSCORE", run.audit.keys.key("z:deadline"), held.job) == dated + 10 * HOUR_MS
    await date(run, *[unit.id for unit in units], in_ms=-10 * HOUR_MS)
    assert await run.scripts.expire_deadlines() == (1, 1)


async def test_a_job_accepted_while_they_stand_is_given_its_own_time_only(run: Run) -> None:
    """What the run stood before does not lengthen the time of a job that came later."""
    await trainer(run).stand_still("run1", 1, "h1", lease_s=LONG_S)
    await passes(run, 300)
    unit = a_unit()
    await run.accept(unit)
    await trainer(run).stand_still("run1", 1, "h1", lease_s=0)
    await date(run, unit.id, in_ms=0)
    await passes(run, 40)

    assert await run.scripts.expire_deadlines() == (1, 0)


async def test_they_stand_for_one_lease_when_the_holder_dies(run: Run) -> None:
    unit = a_unit()
    await run.accept(unit)
    await date(run, unit.id, in_ms=10)
    await trainer(run).stand_still("run1", 1, "h1", lease_s=LONG_S)
    await passes(run, 100)
    assert await run.scripts.expire_deadlines() == (0, 0)

    await trainer(run).stand_still("run1", 1, "h1", lease_s=SHORT_S)  # the last time that it says so
    await passes(run, 500)
    await ask(run.client, "ZADD", run.audit.keys.key("z:deadline"), 1, unit.id)

    assert await run.scripts.expire_deadlines() == (1, 0), "nobody had to clear up after it"


async def test_a_successor_takes_over_and_the_older_one_is_fenced(run: Run) -> None:
    first = trainer(run)
    await first.stand_still("run1", 1, "h1", lease_s=LONG_S)
    await run.scripts.connect_run("run1", nonce=new_nonce(), ttl_s=60)

    with pytest.raises(StaleIncarnation):
        await first.stand_still("run1", 1, "h1", lease_s=LONG_S)
    await passes(run, 50)
    await first.stand_still("run1", 2, "h2", lease_s=LONG_S)
    await passes(run, 50)

    await first.stand_still("run1", 2, "h1", lease_s=0)  # says nothing about another's
    unit = a_unit()
    await run.accept(unit, incarnation=2)
    await date(run, unit.id, in_ms=10)
    await passes(run, 40)
    assert await run.scripts.expire_deadlines() == (0, 0)
    assert 0.1 <= await first.stand_still("run1", 2, "h2", lease_s=0) < LONG_S


async def test_other_runs_are_not_concerned(run: Run) -> None:
    unit = a_unit()
    await run.accept(unit)
    await run.scripts.connect_run("run2", nonce=new_nonce(), ttl_s=60)
    await trainer(run).stand_still("run2", 1, "h1", lease_s=LONG_S)
    await date(run, unit.id, in_ms=-1)

    assert await run.scripts.expire_deadlines() == (1, 0)


async def test_a_group_accepted_later_knows_what_its_run_had_stood(run: Run) -> None:
    await trainer(run).stand_still("run1", 1, "h1", lease_s=LONG_S)
    await passes(run, 50)
    group = a_group(members=2)
    await run.accept(group)

    stood = int((await run.audit.hash(run.audit.keys.group(group.id)))["stood"])
    assert 50 <= stood < 60_000
    assert int((await run.audit.hash(run.audit.keys.job(group.id + ".1")))["stood"]) == stood
