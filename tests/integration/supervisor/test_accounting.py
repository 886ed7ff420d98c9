"""Every sampled token is counted once, and what keeps a run waiting is timed, through the real scripts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import orjson
import pytest

from pipeline.codec import encode
from pipeline.keys import Keys, job_id
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import JournalTurn, Unit
from pipeline.scripts.step_calls import Moved
from pipeline.supervisor.monitors import LENGTH_FIGURES
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.supervisor.token_fates import TokenFate
from pipeline.testing import ManualWorker, a_prompt, a_settlement, a_template
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, mixed, outcome_of

SPEC = StepSpec(target=2, n=4, over=1.0)


async def tokens_of_steps(fleet: Fleet) -> Counter[str]:
    """Tokens by fate over all steps, and over what was counted while none was open."""
    keys = fleet.scripts.keys
    found: Counter[str] = Counter()
    for step in [*await fleet.members(keys.steps(RUN)), "next"]:
        for name, value in (await fleet.hash(keys.step(RUN, step))).items():
            if name.startswith("tokens_"):
                found[name.removeprefix("tokens_")] += int(value)
    return found


async def tokens_of_run(fleet: Fleet) -> Counter[str]:
    found = await fleet.hash(fleet.scripts.keys.run(RUN))
    return Counter({name.removeprefix("tok."): int(value) for name, value in found.items() if name.startswith("tok.")})


async def spent(fleet: Fleet) -> int:
    return sum(int(record["spent"]) for record in await fleet.records("job"))


async def journal(fleet: Fleet, job: str, tokens: int, index: int = 0) -> None:
    """A job in RUN finishes a turn."""
    attempt = int((await fleet.hash(fleet.scripts.keys.job(job)))["att"])
    assert await fleet.scripts.journal([JournalTurn(job, attempt, index, b"turn", tokens)], ttl_ms=60_000) == ["1"]


async def beat(client: AsyncClient, keys: Keys) -> None:
    """The workers of the fleet are alive."""
    await ask(client, "HSET", keys.worker("w1"), "boot", "boot1")
    await ask(client, "PEXPIRE", keys.worker("w1"), 600_000)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", [CancelRule.DEFAULT, CancelRule.ALL])
async def test_the_tokens_of_all_steps_add_up_to_what_the_jobs_sampled(fleet: Fleet, seed: int, rule: CancelRule) -> None:
    """Members end in any order and way, before and after the cancel of their group; steps come one after the other."""
    dice = random.Random(seed)

    def any_end(_group: str, _member: int) -> Settlement:
        outcome = dice.choices([Outcome.OK, Outcome.MODEL_FAILURE, Outcome.INFRA_FAILURE, Outcome.EXPIRED], [8, 2, 1, 1])[0]
        return replace(outcome_of(outcome, float(dice.random() < 0.6)), sampled_tokens=dice.randint(0, 500), stop="finished")

    await fleet.push_many(60)
    spec = StepSpec(target=2, n=4, over=3.0, cancel=rule)
    for step in range(4):
        await fleet.open(step, spec)
    for _ in range(30):
        await fleet.supervise()
        await fleet.work()
        groups = fleet.groups()
        for group in dice.sample(groups, min(len(groups), 5)):
            await fleet.end(group, any_end, dice.sample(range(4), dice.randint(1, 4)))
    for group in fleet.groups():
        await fleet.end(group, any_end)
    await fleet.supervise()

    steps, run = await tokens_of_steps(fleet), await tokens_of_run(fleet)
    assert await fleet.members(fleet.scripts.keys.closed) == []
    groups_told = await fleet.records("group")
    accounted = {record["grp"] for record in groups_told}
    open_ones = {*await fleet.members(fleet.scripts.keys.flying(RUN)), *await fleet.members(fleet.scripts.keys.parked(RUN))}
    jobs = await fleet.records("job")
    assert steps == run
    assert sum(run.values()) == sum(int(record["spent"]) for record in jobs if record["grp"] in accounted) > 0
    assert {record["grp"] for record in jobs} - accounted <= open_ones
    assert {"kept", "filtered", "failed", "late"} <= set(run) <= {fate.value for fate in TokenFate}
    told = Counter[str]()
    for record in groups_told:
        fates = dict(word.split(":") for word in record["fates"].split(",") if word)
        assert sum(map(int, fates.values())) == int(record["sampled"])
        told.update({fate: int(count) for fate, count in fates.items()})
    assert told == run


async def test_finished_turns_of_a_job_that_is_cut_off_are_counted(fleet: Fleet) -> None:
    """A worker that is told to stop settles without a trajectory: without its journal those tokens would be nobody's."""
    await fleet.push_many(2)
    await fleet.open(0, StepSpec(target=1, n=1, over=1.0))
    await fleet.supervise()
    init, run = (ManualWorker(fleet.scripts, stage) for stage in (Stage.INIT, Stage.RUN))
    await init.hand_off(*await init.take())
    [held, *_] = await run.take()
    await journal(fleet, held.job, 30)
    await journal(fleet, held.job, 12, index=1)
    assert await fleet.scripts.journal([JournalTurn(held.job, held.attempt, 1, b"turn", 12)], ttl_ms=60_000) == ["1"]  # said again

    await fleet.scripts.cancel("group", [held.job.rpartition(".")[0]], "redundant")
    await run.settle(held, settlement=Settlement(outcome=Outcome.CANCELLED, reason="redundant"))
    await fleet.supervise()

    record = next(record for record in await fleet.records("job") if record["job"] == held.job)
    assert (record["sampled"], record["spent"]) == ("0", "42")
    [group] = await fleet.records("group")
    assert (group["verdict"], group["fates"], group["sampled"]) == ("cancelled", "cancelled:42", "42")


async def test_tokens_of_a_lost_attempt_are_counted_as_failed(fleet: Fleet) -> None:
    await fleet.push_many(1)
    await fleet.open(0, StepSpec(target=1, n=2, over=1.0))
    await fleet.supervise()
    init, run = (ManualWorker(fleet.scripts, stage) for stage in (Stage.INIT, Stage.RUN))
    await init.hand_off(*await init.take())
    lost, other = await run.take()
    await journal(fleet, lost.job, 100)
    await run.give_up(lost, kind="lost")
    await init.hand_off(*await init.take())
    [again] = await run.take()
    await journal(fleet, again.job, a_settlement(1.0).sampled_tokens)
    await run.hand_off(other, again)
    await fleet.work()
    group = fleet.groups()[0]

    await fleet.end(group, mixed)
    await fleet.supervise()

    each = a_settlement(1.0).sampled_tokens
    assert await tokens_of_run(fleet) == {"kept": 2 * each, "failed": 100}
    assert await spent(fleet) == 2 * each + 100


async def test_what_no_step_launched_is_outside(fleet: Fleet) -> None:
    """A single job, and a group that a client put into the queue itself."""
    units = [Unit(f"{RUN}.single", 0, "single", 0, "", encode(a_prompt())), Unit(f"{RUN}.own.0", 2, "own", 0, "", encode(a_prompt()))]
    template = a_template()
    await fleet.scripts.accept(RUN, fleet.incarnation, template, "tpl1", encode(template), units, max_waiting=1000, window=256)
    await fleet.work()

    await ManualWorker(fleet.scripts, Stage.EVAL).settle(fleet.held.pop(f"{RUN}.single"), settlement=a_settlement(sampled_tokens=11))
    await fleet.end(f"{RUN}.own.0", mixed)
    await fleet.supervise()

    assert await tokens_of_run(fleet) == {"outside": 11 + 6}
    assert await spent(fleet) == 17
    assert await tokens_of_steps(fleet) == {}


async def test_the_record_of_a_group_says_all_that_a_person_asks(fleet: Fleet) -> None:
    def end(_: str, member: int) -> Settlement:
        parts = {"score": float(member % 2), "format": 0.5} if member else {"format": 0.25}
        return replace(a_settlement(float(member % 2)), components=parts, first_version="1.3", last_version="1.4", sampled_tokens=5)

    await fleet.push_many(20)
    await fleet.open(0, SPEC)
    await ask(fleet.scripts.run_script.client, "HSET", fleet.scripts.keys.run(RUN), "ver", 5)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], end)
    await fleet.supervise()

    [record] = await fleet.records("group")
    assert orjson.loads(record["comps"]) == {"score": [0.0, 1.0, 0.0, 1.0], "format": [0.25, 0.5, 0.5, 0.5]}
    assert (record["verdict"], record["prompt"], record["draw"], record["fates"]) == ("informative", "e0-0", "0", "kept:20")
    assert (record["v0"], record["v1"], record["age_v"]) == ("1.3", "1.4", "2")
    assert int(record["age_ms"]) >= 0


async def test_a_share_of_filtered_groups_keeps_its_trajectories_until_the_ack(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=4, n=4, over=1.0, keep_filtered=0.5))
    await fleet.supervise()
    await fleet.work()
    for group in fleet.groups():
        await fleet.end(group, all_right)
    await fleet.supervise()

    records = await fleet.records("group")
    kept = [record["grp"] for record in records if record["kept"] == "1"]
    gone = [record["grp"] for record in records if record["kept"] != "1"]
    assert kept
    assert gone
    for record in records:
        body = keys.body(job_id(record["grp"], 0), 2, "run")
        assert await ask(client, "EXISTS", body) == int(record["grp"] in kept)
    await fleet.scripts.ack(RUN, fleet.incarnation, [("", "group", group) for group in kept])
    assert await ask(client, "EXISTS", *(keys.body(job_id(group, 0), 2, "run") for group in kept)) == 0


async def test_the_window_is_bounded_and_forgets_the_oldest(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """Groups of 256 members: 32 of them are the window's 8,192 members."""
    spec = StepSpec(target=40, n=256, over=1.0)
    await ask(client, "LPUSH", keys.window(RUN), *("filtered|old|1|0|1" for _ in range(600)))
    await fleet.push_many(2)
    await fleet.open(0, spec)
    await fleet.supervise()
    await fleet.work()

    await fleet.end(fleet.groups()[0], all_right)
    await fleet.supervise()

    assert await ask(client, "LLEN", keys.window(RUN)) == 32
    window = await fleet.reader.window(RUN)
    assert (window[0].prompt, len(window[0].ended), window[1].prompt) == ("e0-0", 256, "old")
    assert await ask(client, "PTTL", keys.window(RUN)) > 0


async def test_a_step_says_how_long_the_cancels_before_it_took(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """By the times of Redis: from the target that made a group redundant to the end of its last member."""
    await fleet.push_many(30)
    await fleet.open(0, StepSpec(target=1, n=2, over=4.0))
    await fleet.supervise()
    await fleet.work()
    winner, *idle = fleet.groups()
    await fleet.end(winner, mixed)
    await fleet.supervise()
    await ask(client, "HINCRBY", keys.step(RUN, 0), "reached", -700)  # as if that had been a while ago
    await fleet.open(1, StepSpec(target=1, n=2, over=1.0))
    for group in idle:
        await fleet.end(group, mixed)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    await fleet.supervise()

    first, second = await fleet.records("step")
    assert first["cut_ms"] == ""  # nothing was cancelled before it
    assert 700 <= int(second["cut_ms"]) < 60_000


async def test_what_keeps_a_run_waiting_is_timed_for_the_step_that_is_next(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await beat(client, keys)
    await fleet.push_many(1)
    await fleet.open(0, StepSpec(target=2, n=2, over=1.0))
    await fleet.open(1, StepSpec(target=1, n=2, over=1.0))

    await fleet.supervise()
    assert (await fleet.view()).shortage == "prompts"
    await fleet.work()
    await ask(client, "HINCRBY", keys.run(RUN), "short.t", -5000)
    await fleet.supervise()  # nothing new: nothing is written
    assert "short.prompts" not in await fleet.hash(keys.step(RUN, 0))
    await fleet.push_many(20, start=1)
    await fleet.supervise()

    assert (await fleet.view()).shortage == ""
    assert 5000 <= int((await fleet.hash(keys.step(RUN, 0)))["short.prompts"]) < 60_000
    assert "short.prompts" not in await fleet.hash(keys.step(RUN, 1))
    await ask(client, "HINCRBY", keys.step(RUN, 0), "front", -20_000)
    await fleet.work()
    for group in fleet.groups():
        await fleet.end(group, mixed)
    await fleet.supervise()
    first, *_ = await fleet.records("step")
    assert int(first["short.prompts"]) >= 5000
    assert int(first["watched_ms"]) >= 20_000
    assert set(orjson.loads(first["monitors"])) == set(LENGTH_FIGURES)


async def test_a_paused_run_and_a_fleet_without_workers_are_told_apart(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await fleet.push_many(40)
    await fleet.open(0, SPEC)

    await fleet.supervise()
    await fleet.supervise()
    assert (await fleet.view()).shortage == ""  # a worker may be just starting
    await fleet.supervise()
    assert (await fleet.view()).shortage == "no_workers"
    await ask(client, "HSET", keys.run(RUN), "paused", 1)
    await fleet.supervise()
    assert (await fleet.view()).shortage == "paused"
    await ask(client, "HDEL", keys.run(RUN), "paused")
    await fleet.work()
    await beat(client, keys)
    await fleet.supervise()
    assert (await fleet.view()).shortage == ""


async def test_a_step_that_ends_closes_the_interval_and_the_next_goes_on_with_it(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """A shortage that lasts over a target is not counted twice, and not to the step that is done."""
    await fleet.push_many(1)
    await fleet.open(0, StepSpec(target=1, n=2, over=1.0))
    await fleet.open(1, StepSpec(target=1, n=2, over=1.0))
    await beat(client, keys)
    await fleet.supervise()
    assert (await fleet.view()).shortage == "prompts"
    await fleet.work()
    await ask(client, "HINCRBY", keys.run(RUN), "short.t", -5000)
    await fleet.end(fleet.groups()[0], mixed)
    await fleet.supervise()

    [first] = await fleet.records("step")
    assert 5000 <= int(first["short.prompts"]) < 60_000
    assert (await fleet.view()).shortage == "prompts"
    await ask(client, "HINCRBY", keys.run(RUN), "short.t", -3000)
    await fleet.push_many(20, start=1)
    await fleet.supervise()
    assert 3000 <= int((await fleet.hash(keys.step(RUN, 1)))["short.prompts"]) < 5000


async def test_a_shortage_decided_on_an_old_view_is_refused(fleet: Fleet) -> None:
    await fleet.push_many(1)
    await fleet.open(0, SPEC)
    view = await fleet.view()
    await fleet.supervise()

    with pytest.raises(Moved):
        await fleet.steps.note_shortage(view.basis, "paused")
    assert (await fleet.view()).shortage != "paused"
