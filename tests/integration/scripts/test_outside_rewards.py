"""Rewards from outside, by the scripts: a job that awaits one is held by nobody and ends once, whoever comes first (ADR 10)."""

from __future__ import annotations

import asyncio
import json
import math
import re

import pytest

from ops.job.story import job_story
from pipeline.errors import InvalidRequest, StaleIncarnation
from pipeline.messages import Outcome, Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import Held
from pipeline.scripts.reward_calls import Report, ReportAnswer, Reward, RewardScripts
from pipeline.supervisor.loading import LedgerReader
from pipeline.testing import a_group, a_settlement, a_unit
from pipeline.testing.manual_worker import UNJUDGED

from .conftest import Connect, Run

JOB, GROUP = "run1.e0-i0.0", "run1.e0-i0.0"
OWN = a_settlement(1.0, components={"score": 1.0, "format": 0.5})


def rewards_of(run: Run) -> RewardScripts:
    return RewardScripts(run.scripts.run_script)


async def report(run: Run, job: str, score: float, *, incarnation: int = -1, attempt: int = 0, **components: float) -> ReportAnswer:
    """One report of the run's trainer."""
    what = Report(job=job, reward=Reward(score=score, components=components), run_attempt=attempt)
    [answer] = await rewards_of(run).report_rewards(run.name, run.incarnation if incarnation < 0 else incarnation, [what])
    return answer


async def in_eval(run: Run) -> list[Held]:
    """All jobs, begun in EVAL."""
    return await run.reach(Stage.EVAL)


async def let_await(run: Run, *, reward_deadline_s: float | None = 60.0, hold_s: float = 0.0) -> list[Held]:
    """All jobs await."""
    held = await in_eval(run)
    words = await run.worker(Stage.EVAL).await_reward(*held, reward_deadline_s=reward_deadline_s, hold_s=hold_s)
    assert words == ["ok"] * len(held)
    return held


async def records(run: Run, kind: str) -> list[dict[str, str]]:
    return [row for row in await run.audit.results(run.name) if row["kind"] == kind]


async def test_an_awaiting_job_is_held_by_nobody_and_the_trainer_is_told_of_it(run: Run) -> None:
    await run.accept(a_unit())

    await let_await(run)

    assert await run.states() == {"awaiting": 1}
    assert await run.audit.stage_entries() == []
    assert await run.audit.counter("run1", "inflight") == 0
    assert await run.audit.reserved_bytes() > 0
    (record,) = await run.audit.results("run1")
    assert (record["kind"], record["job"], record["out"], record["ra"], record["sampled"]) == ("awaiting", JOB, "ok", "2", "7")
    assert record["segs"] == "14/5 10/2"
    assert record["counts"] == "calls:1 errors:0 nll:3.500 model:0.000 tools:0.000"
    assert await run.audit.faults("run1", run.units) == []


async def test_a_report_ends_it_with_the_score_to_the_last_bit(run: Run) -> None:
    await run.accept(a_unit())
    await let_await(run)

    assert await report(run, JOB, 0.1 + 0.2, style=1 / 3) is ReportAnswer.ACCEPTED

    (record,) = await run.audit.results("run1")
    assert (record["kind"], record["out"], float(record["rew"]), record["stage"]) == ("job", "ok", 0.1 + 0.2, "eval")
    assert json.loads(record["comps"]) == {"score": 0.1 + 0.2, "style": 1 / 3}
    assert (record["sampled"], record["total"], record["turns"], record["stop"]) == ("7", "24", "1", "finished")
    assert record["segs"] == "14/5 10/2", "what the worker counted stands beside a reward that came later"
    assert await run.audit.all_ended("run1", run.units) == []
    assert await ask(run.client, "EXISTS", run.audit.keys.awaiting("run1")) == 0


async def test_a_limit_that_the_policy_hit_keeps_its_outcome(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await in_eval(run)
    cut = a_settlement(None, outcome=Outcome.MODEL_FAILURE, reason="turns", stop="turns")
    await run.worker(Stage.EVAL).await_reward(held, settlement=cut)

    await report(run, JOB, 0.25)

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"], record["rew"]) == ("model_failure", "turns", "0.25")


async def test_the_same_report_again_and_another_one_change_nothing(run: Run) -> None:
    await run.accept(a_unit())
    await let_await(run)
    await report(run, JOB, 1.0)

    assert await report(run, JOB, 1.0) is ReportAnswer.DUPLICATE
    assert await report(run, JOB, 0.0) is ReportAnswer.DUPLICATE

    (record,) = await run.audit.results("run1")
    assert record["rew"] == "1.0"
    assert await run.audit.counter("run1", "rewards.accepted") == 1
    assert await run.audit.counter("run1", "rewards.duplicate") == 2


async def test_of_reports_that_come_at_once_one_stands(run: Run) -> None:
    """Two processes of one trainer, or a reporter beside it: the script decides, not who asked first."""
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(8)])
    await let_await(run)
    jobs = [unit.id for unit in run.units]

    async def reporter(score: float) -> list[ReportAnswer]:
        return [await report(run, job, score, incarnation=0) for job in jobs]

    answers = await asyncio.gather(reporter(0.0), reporter(1.0), reporter(2.0))

    for number, job in enumerate(jobs):
        winner = [score for score, found in enumerate(answers) if found[number] is ReportAnswer.ACCEPTED]
        (record,) = [row for row in await records(run, "job") if row["job"] == job]
        assert [float(record["rew"])] == winner
    assert await run.audit.all_ended("run1", run.units) == []


async def test_reports_of_what_awaits_none(run: Run) -> None:
    await run.accept(a_unit(prompt="runs"), a_unit(prompt="ended"))
    runs, ended = await in_eval(run)
    await run.worker(Stage.EVAL).settle(ended)

    assert await report(run, runs.job, 1.0) is ReportAnswer.EARLY
    assert await report(run, ended.job, 1.0) is ReportAnswer.LATE
    assert await report(run, "run1.nobody.0", 1.0) is ReportAnswer.UNKNOWN
    assert await report(run, "run2.e0-i0.0", 1.0) is ReportAnswer.UNKNOWN

    assert await run.states() == {"running": 1, "done": 1}


async def test_a_report_on_a_trajectory_that_is_not_there_any_more(run: Run) -> None:
    """Redis lost its last second, the job ran again: what the judge saw is not what waits."""
    await run.accept(a_unit())
    await let_await(run)

    assert await report(run, JOB, 1.0, attempt=7) is ReportAnswer.SUPERSEDED
    assert await report(run, JOB, 1.0, attempt=2) is ReportAnswer.ACCEPTED


async def test_a_trainer_that_was_fenced_off_reports_nothing(run: Run, connect: Connect) -> None:
    await run.accept(a_unit())
    await let_await(run)
    newer = await connect(nonce="newer")

    with pytest.raises(StaleIncarnation):
        await report(run, JOB, 1.0)

    assert await run.states() == {"awaiting": 1}
    assert await report(newer, JOB, 1.0) is ReportAnswer.ACCEPTED


async def test_without_a_reward_in_time_it_is_a_failure_of_infrastructure_and_never_a_zero(run: Run) -> None:
    await run.accept(a_unit())
    await let_await(run, reward_deadline_s=0.0)

    assert await run.scripts.expire_deadlines() == (1, 0)

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"], record["rew"], record["comps"]) == ("infra_failure", "reward_missing", "", "")
    assert record["sampled"] == "7"
    (dead,) = await run.audit.entries(run.audit.keys.dead)
    assert dead["why"].startswith("reward_missing")
    assert await report(run, JOB, 1.0) is ReportAnswer.LATE
    assert await run.audit.all_ended("run1", run.units) == []


async def test_no_deadline_of_a_reward_is_judged_in_quiet_time(run: Run) -> None:
    await run.accept(a_unit())
    await let_await(run, reward_deadline_s=0.0)
    await ask(run.client, "HSET", run.audit.keys.key("janitor"), "quiet_until", 2**50)

    assert await run.scripts.expire_deadlines() == (0, 0)

    assert await report(run, JOB, 1.0) is ReportAnswer.ACCEPTED


async def test_the_wall_deadline_stands(run: Run) -> None:
    await run.accept(a_unit())
    await let_await(run)
    await ask(run.client, "ZADD", run.audit.keys.key("z:deadline"), 1, JOB)

    await run.scripts.expire_deadlines()

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"], record["rew"]) == ("expired", "deadline", "")


@pytest.mark.parametrize("kind", ["job", "group", "run"])
async def test_a_cancel_ends_it_at_once(run: Run, kind: str) -> None:
    await run.accept(a_group(members=1))
    await let_await(run)
    target = {"job": f"{GROUP}.0", "group": GROUP, "run": "run1"}[kind]

    counts = await run.scripts.cancel(kind, [target], "user")  # type: ignore[arg-type]  # one of the three

    assert counts["settled"] == 1
    (record,) = await run.audit.results("run1")
    assert (record["kind"], record["out"], record["why"], record["rew"]) == ("job", "cancelled", "user", "")
    assert await report(run, f"{GROUP}.0", 1.0) is ReportAnswer.LATE
    assert await run.audit.all_ended("run1", run.units) == []


async def test_a_cancel_that_came_no_further_than_the_mark_is_obeyed_by_a_report(run: Run) -> None:
    await run.accept(a_group(members=1))
    await let_await(run)
    await ask(run.client, "HSET", run.audit.keys.group(GROUP), "cx", "stale")

    assert await report(run, f"{GROUP}.0", 1.0) is ReportAnswer.LATE

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"]) == ("cancelled", "stale")


async def test_a_job_that_was_cancelled_before_it_would_await_ends_as_cancelled(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await in_eval(run)
    await run.scripts.cancel("job", [JOB], "user")

    assert await run.worker(Stage.EVAL).await_reward(held) == ["cx:user"]

    (record,) = await run.audit.results("run1")
    assert (record["kind"], record["out"]) == ("job", "cancelled")
    assert await run.worker(Stage.EVAL).await_reward(held) == ["again"]


async def test_a_lost_reply_and_a_late_attempt(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await let_await(run)
    worker = run.worker(Stage.EVAL)

    assert await worker.await_reward(held) == ["again"]
    assert await worker.await_reward(Held(held.stream, held.entry, held.job, held.attempt + 1)) == ["fenced"]
    assert await worker.settle(held) == ["fenced"]
    await report(run, JOB, 1.0)
    assert await worker.await_reward(held) == ["again"]

    assert len(await run.audit.results("run1")) == 1


async def test_what_awaits_does_not_fill_a_quota(connect: Connect) -> None:
    """A person's lunch break must not keep the engines idle."""
    run = await connect(quota=2)
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(4)])

    await let_await(run)

    assert await run.states() == {"awaiting": 2, "ready": 2}
    assert await run.audit.faults("run1", run.units) == []


async def test_a_group_closes_by_the_last_report(run: Run) -> None:
    await run.accept(a_group(members=3))
    await let_await(run)

    await report(run, f"{GROUP}.0", 0.0)
    await report(run, f"{GROUP}.2", 1.0)
    assert await ask(run.client, "ZCARD", run.audit.keys.closed) == 0
    await report(run, f"{GROUP}.1", 1.0)

    assert await run.audit.all_ended("run1", run.units) == []
    lines = await run.audit.members(GROUP)
    assert [lines[number][1] for number in range(3)] == ["0.0", "1.0", "1.0"]


async def test_the_story_of_a_job_says_what_it_waits_for(run: Run) -> None:
    await run.accept(a_unit(prompt="single"), a_group(members=1))
    single, member = await in_eval(run)
    await run.worker(Stage.EVAL).await_reward(single)
    await run.worker(Stage.EVAL).await_reward(member, settlement=OWN, reward_deadline_s=None, hold_s=60.0)

    async def state(job: str) -> str:
        return (await job_story(run.client, run.audit.keys, job)).state

    assert re.fullmatch(r"awaiting a reward from outside until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, then ok", await state(single.job))
    assert await state(member.job) == "awaiting its group's hook, with reward 1"
    await report(run, single.job, 1.0)
    ended = await job_story(run.client, run.audit.keys, single.job)
    assert [what for _, what in ended.timeline()[-2:]] == ["rewarded from outside", "ended"]


async def test_lost_lists_are_found_again(run: Run) -> None:
    """Deadlines, the list of what awaits, and the record that tells the trainer stand in keys that others share."""
    await run.accept(a_unit())
    await let_await(run)
    before = await run.audit.job(JOB)
    await ask(run.client, "UNLINK", run.audit.keys.key("z:deadline"), run.audit.keys.awaiting("run1"), run.audit.keys.results("run1"))

    await run.scripts.reconcile("run1")

    assert await run.audit.faults("run1", run.units) == []
    (record,) = await records(run, "awaiting")
    assert (record["job"], record["due"]) == (JOB, before["rdl"])
    assert await ask(run.client, "ZSCORE", run.audit.keys.key("z:deadline"), JOB) == float(before["rdl"])
    assert await report(run, JOB, 1.0) is ReportAnswer.ACCEPTED
    assert await records(run, "awaiting") == []


async def test_an_awaiting_job_whose_hash_is_gone_is_a_dead_letter(run: Run) -> None:
    await run.accept(a_group(members=2))
    await let_await(run)
    await ask(run.client, "UNLINK", run.audit.keys.job(f"{GROUP}.1"))

    await run.scripts.reconcile("run1")

    assert await run.audit.counter("run1", "inflight") == 0
    await report(run, f"{GROUP}.0", 1.0)
    assert (await run.audit.hash(run.audit.keys.group(GROUP)))["st"] == "closed"
    assert await run.audit.all_ended("run1", run.units) == []


# ---- group hooks


async def held_group(run: Run, *, hold_s: float = 60.0, members: int = 3, own: bool = True) -> None:
    """A group that is held for its hook; its members have their own rewards, or none yet."""
    await run.accept(a_group(members=members))
    held = await in_eval(run)
    words = await run.worker(Stage.EVAL).await_reward(
        *held, settlement=OWN if own else None, reward_deadline_s=None if own else 60.0, hold_s=hold_s
    )
    assert words == ["ok"] * members


async def hook(run: Run, members: dict[int, Reward]) -> ReportAnswer:
    return await rewards_of(run).report_group("run1", run.incarnation, GROUP, members)


async def test_a_group_is_held_when_its_last_member_has_ended_or_waits(run: Run) -> None:
    await run.accept(a_group(members=3))
    first, second, third = await in_eval(run)
    worker = run.worker(Stage.EVAL)
    await worker.await_reward(first, settlement=OWN, reward_deadline_s=None, hold_s=60.0)
    await worker.settle(second, settlement=a_settlement(None))
    assert await records(run, "held") == []

    await worker.await_reward(third, settlement=OWN, reward_deadline_s=None, hold_s=60.0)

    (record,) = await records(run, "held")
    assert (record["grp"], record["prompt"], record["want"]) == (GROUP, "e0-i0", "3")
    assert await ask(run.client, "ZCARD", run.audit.keys.closed) == 0
    assert await run.audit.faults("run1", run.units) == []


async def test_a_member_that_breaks_last_lets_the_others_be_held(run: Run) -> None:
    await run.accept(a_group(members=2))
    first, second = await in_eval(run)
    worker = run.worker(Stage.EVAL)
    await worker.await_reward(first, settlement=OWN, reward_deadline_s=None, hold_s=60.0)

    await worker.settle(second, settlement=a_settlement(None))

    assert len(await records(run, "held")) == 1


async def test_a_hook_adds_components_and_the_score_of_the_task_stands(run: Run) -> None:
    await held_group(run)

    said = {number: Reward(score=-5.0, components={"rank": float(number), "format": 9.0}) for number in range(3)}
    assert await hook(run, said) is ReportAnswer.ACCEPTED

    for number, row in enumerate(await records(run, "job")):
        assert (row["out"], float(row["rew"])) == ("ok", 1.0)
        assert json.loads(row["comps"]) == {"score": 1.0, "format": 0.5, "rank": float(number)}
    assert await records(run, "held") == []
    assert await records(run, "awaiting") == []
    assert await run.audit.all_ended("run1", run.units) == []


async def test_where_the_task_gave_no_score_the_one_of_the_hook_is_it(run: Run) -> None:
    await held_group(run, own=False)
    assert await report(run, f"{GROUP}.1", 0.75) is ReportAnswer.ACCEPTED
    assert await records(run, "job") == []  # it waits for its hook, with its reward

    await hook(run, {number: Reward(score=float(number)) for number in range(3)})

    assert [float(row["rew"]) for row in await records(run, "job")] == [0.0, 0.75, 2.0]


async def test_a_member_that_a_hook_says_nothing_of_waits_for_its_own_reward(run: Run) -> None:
    await held_group(run, own=False)

    await hook(run, {0: Reward(score=0.0), 1: Reward(score=1.0)})

    assert await run.states() == {"done": 2, "awaiting": 1}
    assert await report(run, f"{GROUP}.2", 1.0) is ReportAnswer.ACCEPTED
    assert await run.audit.all_ended("run1", run.units) == []


async def test_what_a_hook_adds_is_there_when_the_reward_comes_after_it(run: Run) -> None:
    """A judge of single answers and a hook of groups race; neither waits for the other."""
    await held_group(run, own=False)

    await hook(run, {number: Reward(score=None, components={"rank": float(number)}) for number in range(3)})
    assert await run.states() == {"awaiting": 3}
    for number in range(3):
        await report(run, f"{GROUP}.{number}", 1.0, short=0.5, rank=9.0)

    comps = [json.loads(row["comps"]) for row in await records(run, "job")]
    assert comps == [{"score": 1.0, "short": 0.5, "rank": float(number)} for number in range(3)]
    assert await run.audit.all_ended("run1", run.units) == []


async def test_the_first_hook_stands(run: Run) -> None:
    await held_group(run)

    answers = await asyncio.gather(*(hook(run, {0: Reward(score=None, components={"rank": float(place)})}) for place in range(4)))

    assert sorted(answers) == ["accepted", "duplicate", "duplicate", "duplicate"]
    assert await run.audit.all_ended("run1", run.units) == []
    assert await run.audit.counter("run1", "hooks.duplicate") == 3


async def test_a_hook_that_comes_too_early_or_for_nothing(run: Run) -> None:
    await run.accept(a_group(members=2))
    assert await hook(run, {}) is ReportAnswer.EARLY
    assert await rewards_of(run).report_group("run1", run.incarnation, "run1.none.0", {}) is ReportAnswer.UNKNOWN
    for held in await in_eval(run):
        await run.worker(Stage.EVAL).settle(held)
    assert await hook(run, {}) is ReportAnswer.LATE


async def test_a_held_group_closes_at_its_deadline_with_what_it_has(run: Run) -> None:
    await run.accept(a_group(members=3))
    first, second, third = await in_eval(run)
    worker = run.worker(Stage.EVAL)
    await worker.await_reward(first, settlement=OWN, reward_deadline_s=None, hold_s=0.001)
    await worker.await_reward(second, settlement=UNJUDGED, hold_s=0.001)
    await worker.await_reward(third, settlement=UNJUDGED, hold_s=0.001)
    await report(run, third.job, 0.5)
    await ask(run.client, "ZADD", run.audit.keys.held, 1, GROUP)

    await run.scripts.expire_deadlines()

    ended = {row["n"]: (row["out"], row["why"], row["rew"]) for row in await records(run, "job")}
    assert ended == {"0": ("ok", "", "1.0"), "1": ("infra_failure", "reward_missing", ""), "2": ("ok", "", "0.5")}
    assert await hook(run, {}) is ReportAnswer.LATE
    assert await records(run, "held") == []
    assert await run.audit.all_ended("run1", run.units) == []


async def test_a_member_with_its_reward_keeps_it_when_its_wall_deadline_passes(run: Run) -> None:
    await held_group(run)
    for member in range(3):
        await ask(run.client, "ZADD", run.audit.keys.key("z:deadline"), 1, f"{GROUP}.{member}")

    await run.scripts.expire_deadlines()

    assert [(row["out"], row["rew"]) for row in await records(run, "job")] == [("ok", "1.0")] * 3
    assert await ask(run.client, "ZCARD", run.audit.keys.held) == 0
    assert await run.audit.all_ended("run1", run.units) == []


async def test_a_cancel_ends_a_held_group_at_once(run: Run) -> None:
    await held_group(run)

    await run.scripts.cancel("group", [GROUP], "redundant")

    assert {row["out"] for row in await records(run, "job")} == {"cancelled"}
    assert await records(run, "held") == []
    assert await hook(run, {}) is ReportAnswer.LATE
    assert await run.audit.all_ended("run1", run.units) == []


async def test_a_group_of_which_a_member_awaits_counts_as_one_with_a_finished_member(run: Run) -> None:
    """Its time was measured. Cancelled as redundant like one that ran on, it would take the short ones with it."""
    await run.accept(a_group(members=2))
    (first, _) = await in_eval(run)
    await ask(run.client, "ZADD", run.audit.keys.flying("run1"), 1, GROUP)
    await ask(run.client, "EXPIRE", run.audit.keys.flying("run1"), 60)

    await run.worker(Stage.EVAL).await_reward(first)

    (flying,) = await LedgerReader(run.client, run.audit.keys).flying("run1")
    assert (flying.finished, flying.ended) == (1, 0)


# ---- what is refused before anything is written


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, "1.0", None.__class__])
def test_a_score_that_is_no_finite_number_is_refused(score: object) -> None:
    with pytest.raises(InvalidRequest, match="expected a finite number") as refused:
        Reward(score=score)  # type: ignore[arg-type]  # what a caller may pass
    assert refused.value.field == "score"


@pytest.mark.parametrize(
    ("components", "field"),
    [
        ({"rank": math.nan}, "components.rank"),
        ({"": 1.0}, "components"),
        ({"a\n": 1.0}, "components"),
        ({"score": 1.0}, "components.score"),
    ],
)
def test_components_that_cannot_stand_are_refused(components: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Reward(score=1.0, components=components)
    assert refused.value.field == field


async def test_a_score_outside_the_bounds_of_its_step_is_refused_and_the_job_goes_on_waiting(run: Run) -> None:
    await run.accept(a_group(members=1))
    await let_await(run)
    await ask(run.client, "HSET", run.audit.keys.group(GROUP), "step", "4")
    await ask(run.client, "HSET", run.audit.keys.step("run1", 4), "low", "0.0", "high", "1.0", "component", "score")
    await ask(run.client, "EXPIRE", run.audit.keys.step("run1", 4), 60)

    with pytest.raises(InvalidRequest, match=r"expected 0\.0 to 1\.0, .* got 1\.5"):
        await report(run, f"{GROUP}.0", 1.5)

    assert await run.states() == {"awaiting": 1}
    assert await report(run, f"{GROUP}.0", 1.0) is ReportAnswer.ACCEPTED
