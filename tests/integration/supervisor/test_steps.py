"""Steps from their first prompt to their record, through the real scripts, with workers moved by hand."""

from __future__ import annotations

import pytest

from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.messages import Outcome
from pipeline.redis_client import AsyncClient, ask
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.testing import a_template
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, broken, mixed, outcome_of

A_SPEC = StepSpec(target=2, n=4, over=1.0)


async def test_a_step_takes_informative_groups_until_it_has_its_target(fleet: Fleet) -> None:
    await fleet.push_many(20)
    assert await fleet.open(0, A_SPEC) == "opened"

    await fleet.supervise()
    await fleet.work()
    launched = fleet.groups()
    assert launched[:3] == [f"{RUN}.e0-0.0", f"{RUN}.e0-1.0", f"{RUN}.e0-2.0"]
    await fleet.end(launched[0], all_right)
    await fleet.end(launched[1], mixed)
    await fleet.supervise()
    assert (await fleet.view()).steps[0].accepted == 1
    await fleet.end(launched[2], mixed)
    await fleet.supervise()

    [step] = await fleet.records("step")
    assert step["groups"].split() == [launched[1], launched[2]]
    assert (step["k"], step["target"], step["filtered"], step["short"]) == ("0", "2", "1", "")
    assert (step["tokens_kept"], step["tokens_filtered"]) == ("24", "12")
    groups = {record["grp"]: record for record in await fleet.records("group")}
    assert (groups[launched[0]]["verdict"], groups[launched[0]]["why"]) == ("filtered", "all 1")
    assert groups[launched[1]]["verdict"] == "informative"
    assert groups[launched[1]]["rews"] == "0,1,0,1"
    assert (groups[launched[1]]["mean"], groups[launched[1]]["spread"]) == ("0.5", "1")
    assert "first" not in await fleet.hash(fleet.scripts.keys.run(RUN))  # no open step is left to look for
    assert await fleet.mark("e0-0") == "filtered 1 0 0 1"
    assert await fleet.mark("e0-1") == "trained 1 0 0 2"


async def test_a_filtered_group_is_replaced_at_once(fleet: Fleet) -> None:
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    before = len(await fleet.members(fleet.scripts.keys.flying(RUN)))

    await fleet.end(fleet.groups()[0], all_right)
    await fleet.supervise()

    assert len(await fleet.members(fleet.scripts.keys.flying(RUN))) >= before


async def test_trajectories_nobody_trains_on_go_at_once_and_their_records_stay(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    filtered, kept = fleet.groups()[:2]
    await fleet.end(filtered, all_right)
    await fleet.end(kept, mixed)

    await fleet.supervise()

    def bodies(group: str) -> list[str]:
        return [
            keys.body(f"{group}.0", 1, "init"),
            keys.body(f"{group}.0", 2, "run"),
            keys.body(f"{group}.0", 3, "eval"),
            keys.attached(f"{group}.0", 3),
            keys.prompt(group),
        ]

    assert await ask(client, "EXISTS", *bodies(filtered)) == 0
    assert await ask(client, "EXISTS", *bodies(kept)) == 5
    assert await ask(client, "EXISTS", keys.job(f"{filtered}.0")) == 1
    ended = [record["job"] for record in await fleet.records("job")]
    assert sorted(ended) == sorted(f"{group}.{index}" for group in (filtered, kept) for index in range(4))


async def test_at_the_target_unfinished_groups_are_cancelled_with_one_message_and_their_prompts_return_first(
    fleet: Fleet, client: AsyncClient, keys: Keys
) -> None:
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=4, over=6.0))
    await fleet.supervise()
    await fleet.work()
    launched = fleet.groups()
    winner, started, *idle = launched
    await fleet.end(started, mixed, [0])
    await fleet.end(winner, mixed)

    await fleet.supervise()

    assert set(await fleet.members(keys.flying(RUN))) == {started}
    messages = await ask(client, "XRANGE", keys.cancel, "-", "+")
    [cancel] = [fields for _, fields in messages]
    assert (cancel[b"kind"], cancel[b"why"]) == (b"group", b"redundant")
    assert set(cancel[b"ids"].decode().split()) == set(idle)
    prompts = [group.split(".")[1] for group in idle]
    assert (await fleet.members(keys.reserve(RUN)))[: len(idle)] == prompts
    assert await fleet.mark(prompts[0]) == "reserve 1 1 0 3"
    [step] = await fleet.records("step")
    assert step["redundant"] == str(len(idle))

    words = [word for group in idle for word in await fleet.end(group, mixed)]
    assert words == ["cx:redundant"] * (4 * len(idle))
    await fleet.open(1, A_SPEC)
    await fleet.supervise()
    verdicts = {record["grp"]: record["verdict"] for record in await fleet.records("group")}
    assert [verdicts[group] for group in idle] == ["cancelled"] * len(idle)
    assert await fleet.mark(prompts[0]) == "flying 1 1 0 3"  # drawn again whole, and returned only once
    assert int((await fleet.hash(keys.step(RUN, 1)))["cut_ms"]) >= 0  # accounted to the step that was open by then


async def test_jobs_that_wait_end_in_the_script_that_reaches_the_step(fleet: Fleet) -> None:
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=4, over=2.0))
    await fleet.supervise()
    await fleet.work()
    await fleet.push_many(30, start=30)
    winner = fleet.groups()[0]
    others = [group for group in await fleet.members(fleet.scripts.keys.flying(RUN)) if group != winner]
    fleet.held = {job: held for job, held in fleet.held.items() if job.startswith(winner)}
    await fleet.end(winner, mixed)

    await fleet.supervise()

    assert len(others) == 2
    assert await fleet.members(fleet.scripts.keys.flying(RUN)) == []


async def test_a_step_of_other_groups_may_be_reached_before_the_one_before_it(fleet: Fleet) -> None:
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=4, over=1.0))
    await fleet.open(1, StepSpec(target=1, n=2, over=1.0))
    await fleet.supervise()
    await fleet.work()
    sizes = {group: sum(job.startswith(group + ".") for job in fleet.held) for group in fleet.groups()}
    four = next(group for group, size in sizes.items() if size == 4)
    two = next(group for group, size in sizes.items() if size == 2)

    await fleet.end(two, mixed)
    await fleet.supervise()
    assert [step.index for step in (await fleet.view()).steps] == [0]
    await fleet.end(four, mixed)
    await fleet.supervise()

    assert [(step["k"], step["groups"]) for step in await fleet.records("step")] == [("1", two), ("0", four)]


async def test_carry_leaves_everything_in_flight_for_the_next_step(fleet: Fleet) -> None:
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=4, over=4.0, cancel=CancelRule.CARRY))
    await fleet.supervise()
    await fleet.work()
    winner, *others = fleet.groups()

    await fleet.end(winner, mixed)
    await fleet.supervise()

    assert await fleet.members(fleet.scripts.keys.flying(RUN)) == others


async def test_surplus_groups_wait_and_open_the_next_step(fleet: Fleet) -> None:
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=4, over=4.0))
    await fleet.supervise()
    await fleet.work()
    first, second, third, *_ = fleet.groups()
    for group in (first, second, third):
        await fleet.end(group, mixed)

    await fleet.supervise()
    assert set(await fleet.members(fleet.scripts.keys.parked(RUN))) == {second, third}
    assert [record["grp"] for record in await fleet.records("group") if record["verdict"] == "informative"] == [first]
    await fleet.open(1, A_SPEC)
    await fleet.supervise()

    one, two = await fleet.records("step")
    assert (one["groups"], two["groups"]) == (first, f"{second} {third}")
    steps = {record["grp"]: record["step"] for record in await fleet.records("group") if record["verdict"] == "informative"}
    assert steps == {first: "0", second: "1", third: "1"}


async def test_what_closes_while_no_step_is_open_is_counted_to_the_next(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=4, over=3.0))
    await fleet.supervise()
    await fleet.work()
    winner, other, *_ = fleet.groups()
    await fleet.end(other, all_right, [0])
    await fleet.end(winner, mixed)
    await fleet.supervise()
    await fleet.end(other, all_right)
    await fleet.supervise()

    await fleet.open(1, A_SPEC)

    assert (await fleet.hash(keys.step(RUN, 1)))["filtered"] == "1"
    assert other in await fleet.hash(keys.step_groups(RUN, 1))
    assert await ask(client, "EXISTS", keys.step(RUN, "next"), keys.step_groups(RUN, "next")) == 0


async def test_a_dropped_group_is_drawn_again_and_then_its_prompt_is_dead(fleet: Fleet, keys: Keys) -> None:
    await fleet.push("e0-0")
    await fleet.open(0, StepSpec(target=1, n=4, max_redraws=1))

    for draw in range(2):
        await fleet.supervise()
        await fleet.work()
        assert fleet.groups() == [f"{RUN}.e0-0.{draw}"]
        await fleet.end(f"{RUN}.e0-0.{draw}", broken)
    await fleet.supervise()

    assert [record["verdict"] for record in await fleet.records("group")] == ["dropped", "dead"]
    assert await fleet.mark("e0-0") == "dead 1 1 1 1"
    assert await fleet.members(keys.reserve(RUN)) == []
    assert "e0-0" not in await fleet.hash(keys.prompt_bodies(RUN))


async def test_a_group_may_close_short_and_its_broken_member_is_in_no_statistic(fleet: Fleet) -> None:
    await fleet.push_many(4)
    await fleet.open(0, StepSpec(target=1, n=4))
    await fleet.supervise()
    await fleet.work()
    group = fleet.groups()[0]
    await fleet.end(group, broken, [2])
    await fleet.end(group, lambda _g, member: outcome_of(Outcome.MODEL_FAILURE, 0.0) if member else outcome_of(Outcome.OK, 1.0))

    await fleet.supervise()

    [record] = await fleet.records("group")
    assert (record["verdict"], record["want"], record["valid"], record["rews"]) == ("informative", "4", "3", "1,0,,0")
    assert float(record["mean"]) == pytest.approx(1 / 3)


async def test_an_empty_reserve_is_announced_once_until_prompts_come(fleet: Fleet) -> None:
    await fleet.push("e0-0")
    await fleet.open(0, A_SPEC)

    for _ in range(3):
        await fleet.supervise()
    [note] = await fleet.records("note")
    assert (note["note"], note["want"], note["step"]) == ("need_prompts", "2", "0")
    await fleet.push("e0-1")
    await fleet.supervise()

    assert len(await fleet.members(fleet.scripts.keys.flying(RUN))) == 2
    assert len(await fleet.records("note")) == 2


async def test_a_step_ends_short_when_prompts_have_ended_and_nothing_is_in_flight(fleet: Fleet) -> None:
    await fleet.push("e0-0")
    await fleet.open(0, A_SPEC)
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    await fleet.supervise()
    assert await fleet.records("step") == []
    await fleet.work()
    await fleet.end(f"{RUN}.e0-0.0", mixed)

    await fleet.supervise()

    [step] = await fleet.records("step")
    assert (step["short"], step["groups"]) == ("1", f"{RUN}.e0-0.0")
    assert await fleet.records("note") == []


async def test_no_prompts_at_all_end_a_step_at_once(fleet: Fleet) -> None:
    await fleet.open(0, A_SPEC)
    await fleet.open(1, A_SPEC)
    await fleet.steps.end_prompts(RUN, fleet.incarnation)

    await fleet.supervise()

    assert [(step["k"], step["short"], step["groups"]) for step in await fleet.records("step")] == [("0", "1", ""), ("1", "1", "")]


async def test_over_an_epoch_every_prompt_is_accounted_for(fleet: Fleet, keys: Keys) -> None:
    await fleet.push_many(12)
    await fleet.open(0, StepSpec(target=3, n=4, over=2.0, max_redraws=0))
    await fleet.supervise()
    await fleet.work()
    for at, group in enumerate(fleet.groups()):
        await fleet.end(group, (mixed, all_right, broken)[at % 3])
    await fleet.supervise()

    states = [mark.split()[0] for mark in (await fleet.hash(keys.prompt_marks(RUN))).values()]
    parked = await fleet.members(keys.parked(RUN))
    head = await fleet.hash(keys.run(RUN))
    assert len(states) == 12 == int(head["prompts.pushed"])
    assert {"trained", "filtered", "dead", "reserve"} <= set(states)
    assert states.count("flying") == len(parked)
    for state in ("trained", "filtered", "dead"):
        assert states.count(state) == int(head[f"prompts.{state}"])


async def test_each_step_keeps_a_readable_line_of_every_group(fleet: Fleet, keys: Keys) -> None:
    await fleet.push_many(4)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    first, second = fleet.groups()[:2]
    await fleet.end(first, mixed)
    await fleet.end(second, all_right)
    await fleet.supervise()

    lines = await fleet.hash(keys.step_groups(RUN, 0))
    assert lines[first].split("|")[:9] == ["informative", "1", "e0-0", "0", "4", "4", "0.5", "1", "12"]
    assert lines[second].split("|")[:9] == ["filtered", "all 1", "e0-1", "0", "4", "4", "1", "0", "12"]


async def test_a_step_that_cannot_be_is_refused_before_anything_is_sent(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest, match="step"):
        await fleet.open(-1, A_SPEC)
    with pytest.raises(InvalidRequest, match="policy"):
        await fleet.open(0, StepSpec(target=1, n=2, policy="pass_rate_between", policy_args={"low": 2.0}))
    assert (await fleet.view()).steps == ()


async def test_what_a_step_asks_of_its_jobs_reaches_them(fleet: Fleet, keys: Keys) -> None:
    await fleet.push("e0-0")
    await fleet.open(0, StepSpec(target=1, n=2, version="1.7"), a_template(task="code", max_failed=7, priority=3))

    await fleet.supervise()

    job = await fleet.hash(keys.job(f"{RUN}.e0-0.0.1"))
    assert (job["task"], job["mf"], job["tpl"], job["grp"], job["n"]) == ("code", "7", "tpl1", f"{RUN}.e0-0.0", "1")
    assert (await fleet.hash(keys.group(f"{RUN}.e0-0.0")))["pv"] == "1.7"
