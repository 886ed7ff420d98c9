"""Prompts into the reserve, and what a trainer that connects again finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.errors import InvalidRequest, QueueFull, RunClosed, StaleIncarnation
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.loading import LedgerReader
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import PrivateServer, a_template
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

A_SPEC = StepSpec(target=2, n=4, over=1.0)


async def test_prompts_are_taken_in_the_order_they_were_pushed_and_once(fleet: Fleet, keys: Keys) -> None:
    assert await fleet.push("e0-5", "e0-3") == [True, True]
    assert await fleet.push("e0-3", "e0-4") == [False, True]

    assert await fleet.members(keys.reserve(RUN)) == ["e0-5", "e0-3", "e0-4"]


async def test_a_prompt_in_flight_or_done_with_is_not_taken_again(fleet: Fleet) -> None:
    await fleet.push_many(6)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    await fleet.supervise()

    assert await fleet.push("e0-0", "e0-1", "e0-5") == [False, False, False]


async def test_many_prompts_go_in_one_call(fleet: Fleet, keys: Keys) -> None:
    await fleet.push_many(1000)

    assert await fleet.members(keys.reserve(RUN)) == [f"e0-{i}" for i in range(1000)]


async def test_a_prompt_whose_id_cannot_name_a_group_is_refused(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt\.id"):
        await fleet.push("e0.1")


async def test_a_trainer_that_was_replaced_feeds_and_opens_nothing_more(fleet: Fleet) -> None:
    old = fleet.incarnation
    await fleet.connect(nonce="second")
    fleet.incarnation = old

    with pytest.raises(StaleIncarnation):
        await fleet.push("e0-0")
    with pytest.raises(StaleIncarnation):
        await fleet.open(0, A_SPEC)
    with pytest.raises(StaleIncarnation):
        await fleet.steps.end_prompts(RUN, fleet.incarnation)


async def test_a_run_that_does_not_exist_takes_nothing(fleet: Fleet) -> None:
    with pytest.raises(RunClosed):
        await fleet.steps.push_prompts("unknown", 1, [("e0-0", b"x")])


async def test_a_push_after_the_end_takes_the_end_back(fleet: Fleet) -> None:
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    await fleet.push("e1-0")

    assert not (await fleet.view()).prompts_ended


async def test_the_end_that_an_older_trainer_said_ends_nothing_for_the_next(fleet: Fleet) -> None:
    """Otherwise its first step would end short and empty before it could push."""
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    await fleet.connect(nonce="second")
    await fleet.open(0, A_SPEC)

    await fleet.supervise()

    assert not (await fleet.view()).prompts_ended
    assert await fleet.records("step") == []


async def test_a_trainer_that_comes_back_goes_on_with_the_same_step(fleet: Fleet, keys: Keys) -> None:
    """What had joined stays; what was in flight is drawn anew, whole, and never joins."""
    await fleet.push_many(8)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    joined, flying, *_ = fleet.groups()
    await fleet.end(joined, mixed)
    await fleet.supervise()

    await fleet.connect(nonce="second")
    assert await fleet.open(0, A_SPEC) == "opened"
    await fleet.supervise()
    await fleet.end(flying, mixed)  # its worker had not heard yet
    await fleet.supervise()
    assert (await fleet.view()).steps[0].accepted == 1
    await fleet.work()
    again = next(group for group in fleet.groups() if group.endswith(".1"))
    await fleet.end(again, mixed)
    await fleet.supervise()

    [step] = await fleet.records("step")
    assert step["groups"].split() == [joined, again]
    verdicts = {record["grp"]: (record["verdict"], record["why"]) for record in await fleet.records("group")}
    assert verdicts[flying] == ("cancelled", "incarnation 1 of the run ended")
    assert again == flying[:-1] + "1"


async def test_a_step_that_was_reached_and_not_acked_comes_again_as_it_is(fleet: Fleet) -> None:
    await reach_first_step(fleet)
    await fleet.connect(nonce="second")

    assert await fleet.open(0, A_SPEC) == "reached"
    assert len(await fleet.records("step")) == 1


async def test_a_trainer_that_went_back_gets_its_steps_and_prompts_anew(fleet: Fleet, keys: Keys) -> None:
    await reach_first_step(fleet)
    [step] = await fleet.records("step")
    used = [group.split(".")[1] for group in step["groups"].split()]
    await fleet.open(1, A_SPEC)
    entries = await ask(fleet.scripts.run_script.client, "XREVRANGE", keys.results(RUN), "+", "-", "COUNT", 1)
    await fleet.scripts.ack(RUN, fleet.incarnation, [(entries[0][0].decode(), "step", "0")])

    await fleet.connect(nonce="second")
    assert await fleet.push(*used) == [True, True]
    assert await fleet.open(0, A_SPEC) == "opened"
    assert (await fleet.hash(keys.step(RUN, 1))) == {}
    assert (await fleet.members(keys.reserve(RUN)))[:2] == used  # before all that were never drawn
    await fleet.supervise()
    await fleet.work()
    for group in [name for name in fleet.groups() if name.split(".")[1] in used]:
        assert group.endswith(".1")
        await fleet.end(group, mixed)
    await fleet.supervise()

    again = (await fleet.records("step"))[-1]
    assert again["groups"].split() == [f"{RUN}.{prompt}.1" for prompt in used]
    assert again["inc"] == "2"


async def test_a_run_that_was_cancelled_launches_nothing_and_ends_its_groups_as_cancelled(fleet: Fleet) -> None:
    await fleet.push_many(8)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.scripts.cancel("run", [RUN], "user")

    await fleet.supervise()
    await fleet.supervise()

    assert {record["verdict"] for record in await fleet.records("group")} == {"cancelled"}
    assert (await fleet.view()).flying == 0


@pytest.mark.one_server
async def test_a_full_redis_refuses_prompts_and_launches_and_still_accounts(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(maxmemory_bytes=12_000_000)
    client = command_client(QueueSettings(redis_url=server.url))
    try:
        fleet = new_fleet(client)
        await fleet.connect()
        await fleet.push_many(20)
        await fleet.open(0, StepSpec(target=4, n=4, over=1.0), a_template(expected_bytes=1024))
        await fleet.supervise()
        await fleet.work()
        await ask(client, "SETRANGE", "{rs:0}:filler", 9_000_000, "x")

        with pytest.raises(QueueFull) as refused:
            await fleet.push("e0-99")
        assert refused.value.retry_after_s > 0
        for group in fleet.groups():
            await fleet.end(group, mixed)
        await fleet.supervise()

        assert len(await fleet.records("step")) == 1
        await fleet.open(1, StepSpec(target=8, n=4))
        await fleet.supervise()
        view = await fleet.view()
        assert (view.flying, view.reserve > 0) == (0, True)
    finally:
        await client.aclose()


def new_fleet(client: AsyncClient) -> Fleet:
    keys = Keys.of_shard("rs", 0)
    steps, reader = StepScripts(client, keys), LedgerReader(client, keys)
    return Fleet(Scripts(client, keys), steps, Drain(reader, steps, window=256), reader)


async def reach_first_step(fleet: Fleet) -> None:
    await fleet.push_many(8)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    for group in fleet.groups()[:2]:
        await fleet.end(group, mixed)
    await fleet.supervise()
