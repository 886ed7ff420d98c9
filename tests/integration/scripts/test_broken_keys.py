"""A key of one run holds something else (WRONGTYPE): that run is hurt, and no other one notices (promises 1 and 2).

Scripts serve many runs in one call, and lists that runs share are worked off from the front. Each test breaks one key of the run `bad` and
looks at the run `good`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.errors import BrokerMisused
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import Held
from pipeline.testing import a_group, a_unit
from pipeline.testing.manual_worker import held_of

from .conftest import Connect, Run

KeyOf = Callable[[Keys], str]
OF_THE_RUN: dict[str, KeyOf] = {
    "run": lambda keys: keys.run("bad"),
    "queue": lambda keys: keys.queue("bad"),
    "open units": lambda keys: keys.open_units("bad"),
    "results": lambda keys: keys.results("bad"),
}


@pytest.fixture
async def pair(connect: Connect) -> tuple[Run, Run]:
    """The run that breaks, whose jobs come first everywhere, and another one."""
    return await connect("bad"), await connect("good")


async def break_key(run: Run, key_of: KeyOf) -> str:
    key = key_of(run.audit.keys)
    await ask(run.client, "DEL", key)
    await ask(run.client, "SET", key, "something else", "EX", 3600)
    return key


@pytest.mark.parametrize("name", OF_THE_RUN)
async def test_admission_goes_on_for_the_others(pair: tuple[Run, Run], name: str) -> None:
    """The broken run stood first in the round robin and stopped it: nobody's jobs were admitted any more, and each accept of any run
    answered with an error although it had accepted."""
    bad, good = pair
    await bad.accept(a_unit("bad"), window=0)
    await good.accept(a_unit("good"), window=0)
    await break_key(bad, OF_THE_RUN[name])

    await good.scripts.admit(["none"], 100)

    assert await good.states() == {"ready": 1}
    assert await good.accept(a_unit("good", prompt="next")) == [True]


@pytest.mark.parametrize("name", OF_THE_RUN)
async def test_leases_of_the_others_are_renewed(pair: tuple[Run, Run], name: str) -> None:
    """A worker renews all that it holds in one call. It failed as a whole: two leases later every job of the worker was lost, of every run,
    and after `max_lost` times a dead letter."""
    bad, good = pair
    await bad.accept(a_unit("bad"))
    await good.accept(a_unit("good"))
    worker = good.worker(Stage.INIT)
    held = await worker.take()
    await break_key(bad, OF_THE_RUN[name])

    assert await worker.renew(*held) == (True, ["1", "1"])


@pytest.mark.parametrize("name", OF_THE_RUN)
async def test_a_worker_begins_and_ends_the_jobs_of_the_others(pair: tuple[Run, Run], name: str) -> None:
    """What the consumer does with a batch that fails: one by one, and what still fails is rejected. Nothing of that may raise: it would end
    the worker."""
    bad, good = pair
    await bad.accept(a_unit("bad"))
    await good.accept(a_unit("good"))
    worker = good.worker(Stage.INIT)
    claims = await worker.deliver()
    await break_key(bad, OF_THE_RUN[name])

    held: list[Held] = []
    for claim in claims:
        held += [held_of(begun) for begun in await worker.begin(claim) if begun.state == "ok"]
    for job in held:
        try:
            await worker.settle(job)
        except BrokerMisused as error:
            await worker.scripts.reject(job.stream, Stage.INIT, job.entry, str(error), b"")

    assert await good.states() == {"done": 1}
    if name != "results":
        assert await bad.states() == {"done": 1}


@pytest.mark.parametrize("name", OF_THE_RUN)
async def test_deadlines_of_the_others_hold(pair: tuple[Run, Run], name: str) -> None:
    """A job that cannot end stood first among the deadlines, and no deadline of anybody was kept."""
    bad, good = pair
    await bad.accept(a_unit("bad"))
    await good.accept(a_unit("good"))
    await ask(good.client, "ZADD", good.audit.keys.key("z:deadline"), 1, "bad.e0-i0.0", 2, "good.e0-i0.0")
    await break_key(bad, OF_THE_RUN[name])

    if name == "results":
        with pytest.raises(BrokerMisused, match=r"bad\.e0-i0\.0: WRONGTYPE"):
            await good.scripts.expire_deadlines()
    else:
        await good.scripts.expire_deadlines()

    assert [row["out"] for row in await good.audit.results("good")] == ["expired"]


async def test_retries_of_a_stage_that_can_be_reached_are_promoted(pair: tuple[Run, Run]) -> None:
    """The stream of RUN is something else by now; a retry of INIT is not held up by one of RUN."""
    _, good = pair
    await good.accept(a_unit("good"))
    (in_run,) = await good.reach(Stage.RUN)
    await good.accept(a_unit("good", prompt="next"))
    (in_init,) = await good.reach(Stage.INIT)
    await good.worker(Stage.RUN).give_up(in_run, backoff_ms=1)
    await good.worker(Stage.INIT).give_up(in_init, backoff_ms=1)
    await ask(good.client, "ZADD", good.audit.keys.key("z:delay"), 1, in_run.job, 2, in_init.job)
    await break_key(good, lambda keys: keys.stage_stream(Stage.RUN))

    with pytest.raises(BrokerMisused, match="WRONGTYPE"):
        await good.scripts.promote()

    assert (await good.audit.job(in_init.job))["st"] == "ready"
    await ask(good.client, "DEL", good.audit.keys.stage_stream(Stage.RUN))
    await ask(good.client, "ZADD", good.audit.keys.key("z:delay"), 1, in_run.job)
    await good.scripts.promote()
    assert (await good.audit.job(in_run.job))["st"] == "ready"


async def test_a_queue_that_is_something_else_gives_its_jobs_back(pair: tuple[Run, Run]) -> None:
    bad, _ = pair
    await bad.accept(a_unit("bad"), window=0)
    await break_key(bad, OF_THE_RUN["queue"])

    assert await bad.scripts.reconcile("bad") == ("0", 1)

    assert await bad.states() == {"ready": 1}


async def test_a_lost_list_of_runs_with_waiting_jobs_is_made_again(pair: tuple[Run, Run]) -> None:
    """`active` was deleted: the run says of itself that it is listed, so no accept listed it again and its jobs waited for ever."""
    _, good = pair
    await good.accept(a_group("good", members=2), window=0)
    await ask(good.client, "DEL", good.audit.keys.key("active"))
    assert await good.scripts.admit(["none"], 10) == 0

    await good.scripts.reconcile("good")

    assert await good.scripts.admit(["none"], 10) == 2


async def test_lost_deadlines_are_made_again(pair: tuple[Run, Run]) -> None:
    _, good = pair
    await good.accept(a_unit("good"))
    deadlines = good.audit.keys.key("z:deadline")
    before = await ask(good.client, "ZRANGE", deadlines, 0, -1, "WITHSCORES")
    await ask(good.client, "DEL", deadlines)

    await good.scripts.reconcile("good")

    assert await ask(good.client, "ZRANGE", deadlines, 0, -1, "WITHSCORES") == before


async def test_a_group_that_could_not_be_closed_is_closed_later(pair: tuple[Run, Run]) -> None:
    """The record of closed groups could not be written when the last member reported. That member says 'again' from then on: nobody would
    close the group any more, and its step would wait for ever (promise 3)."""
    _, good = pair
    group = a_group("good", members=1)
    await good.accept(group)
    (held,) = await good.reach(Stage.EVAL)
    closed = await break_key(good, lambda keys: keys.closed)
    worker = good.worker(Stage.EVAL)
    with pytest.raises(BrokerMisused, match="WRONGTYPE"):
        await worker.settle(held)
    await ask(good.client, "DEL", closed)
    assert await worker.settle(held) == ["again"]

    await good.scripts.reconcile("good")

    assert [word.decode() for word in await ask(good.client, "ZRANGE", closed, 0, -1)] == [group.id]
    assert (await good.audit.hash(good.audit.keys.group(group.id)))["st"] == "closed"
    await worker.recover("idle", held)


async def test_a_group_whose_number_of_members_is_none_closes_and_keeps_no_other_job_from_settling(pair: tuple[Run, Run]) -> None:
    """`want` of a group was no number: the comparison failed the whole call, and with it every job that was settled in the same batch."""
    bad, good = pair
    group = a_group("bad", members=2)
    await bad.accept(group)
    await good.accept(a_unit("good"))
    held = await bad.reach(Stage.EVAL)
    await ask(bad.client, "HSET", bad.audit.keys.group(group.id), "want", "two")

    assert await bad.worker(Stage.EVAL).settle(*held) == ["ok"] * 3

    assert await good.states() == {"done": 1}
    assert (await bad.audit.hash(bad.audit.keys.group(group.id)))["st"] == "closed"
    assert await ask(bad.client, "ZRANGE", bad.audit.keys.closed, 0, -1) == [group.id.encode()]
    await ask(bad.client, "HSET", bad.audit.keys.group(group.id), "want", 2)  # what is audited after the test
