"""Rewards from outside as a trainer gives them: with the real supervisor, and workers that carry every job to where it awaits one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import Outcome, RewardSource, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.calls import Held
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import ManualWorker, a_settlement, wait_until
from tests.integration.trainer_client.pump import Pump, alternating, pumping, trajectory_of
from tests.integration.trainer_client.rows import member_of, rows
from trainer_client import HeldGroup, JobRequest, ReportAnswer, Run, Step, StepRequest, WaitTimeout, connect, connect_blocking

RUN = "judged"
STEP = StepRequest(task="math", groups=2, n=4, ahead=0, reward=RewardSource.OUTSIDE)


@dataclass
class AwaitingPump(Pump):
    """Its EVAL does as the product's: it lets each job await its reward, or, with the task's own, its group's hook."""

    hold_s: float = 0.0
    own: bool = False
    reward_deadline_s: float = 60.0

    async def _end(self, worker: ManualWorker, held: Held) -> None:
        if self.own:
            settlement = a_settlement(alternating(held.job))
            await worker.await_reward(held, settlement=settlement, reward_deadline_s=None, hold_s=self.hold_s)
        else:
            await worker.await_reward(held, reward_deadline_s=self.reward_deadline_s, hold_s=self.hold_s)
        self.ended.append(held.job)


def at_work(scripts: Scripts, **options: object) -> AbstractAsyncContextManager[Pump]:
    return pumping(AwaitingPump(scripts, **options))  # type: ignore[arg-type]  # the pump's own fields


async def judged_now(client: AsyncClient, scripts: Scripts) -> None:
    """As if the janitor's quiet time after a start were over, and its next round had come."""
    key = scripts.keys.key("janitor")
    await wait_until(lambda: ask(client, "HEXISTS", key, "quiet_until"), "a janitor came by")
    await ask(client, "HDEL", key, "quiet_until")
    await wait_until(lambda: _some_expired(scripts), "something expired")


async def judge(run: Run, answers: list[ReportAnswer]) -> None:
    """Gives every job that awaits a reward one, by its number."""
    async for awaiting in run.awaiting(timeout_s=30):
        answers.append(await run.report_reward(awaiting, float(member_of(awaiting.job) % 2), {"style": 0.5}))


@asynccontextmanager
async def judging(run: Run):  # type: ignore[no-untyped-def]  # yields the answers
    answers: list[ReportAnswer] = []
    task = asyncio.create_task(judge(run, answers), name="judge")
    try:
        yield answers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_single_job_is_judged_by_what_it_made(settings: QueueSettings, scripts: Scripts) -> None:
    async with at_work(scripts), connect(settings, run=RUN) as run:
        job = await run.submit(JobRequest(task="math", prompt={"q": 1}, id="one", reward=RewardSource.OUTSIDE))
        awaiting = await anext(run.awaiting(timeout_s=20))
        assert (awaiting.job, awaiting.outcome) == (job.id, Outcome.OK)
        assert (await awaiting.prompt()).data == {"q": 1}
        made = await awaiting.trajectory()
        assert np.array_equal(made.segments[0].token_ids, trajectory_of(job.id).segments[0].token_ids)

        assert await awaiting.report(0.25, {"style": 1.0}) is ReportAnswer.ACCEPTED

        result = await job.result(timeout_s=20)
        assert (result.outcome, result.reward, result.record.components) == (Outcome.OK, 0.25, {"score": 0.25, "style": 1.0})
        assert np.array_equal((await result.trajectory()).segments[0].logprobs, made.segments[0].logprobs, equal_nan=True)
        assert await run.report_reward(job, 1.0) is ReportAnswer.DUPLICATE
        await result.ack()
        assert await run.report_reward(job, 1.0) is ReportAnswer.UNKNOWN


async def test_steps_are_made_of_rewards_from_outside(settings: QueueSettings, scripts: Scripts, supervisor: Supervisor) -> None:
    async with at_work(scripts), connect(settings, run=RUN) as run, judging(run) as answers:
        run.feed(rows(20))

        steps = [step async for step in run.steps(STEP, count=2, timeout_s=20)]

        assert [group.rewards for step in steps for group in step.groups] == [(0.0, 1.0, 0.0, 1.0)] * 4
        assert set(answers) == {ReportAnswer.ACCEPTED}


async def test_a_score_that_is_none_is_refused_and_the_job_goes_on_waiting(settings: QueueSettings, scripts: Scripts) -> None:
    async with at_work(scripts), connect(settings, run=RUN) as run:
        job = await run.submit(JobRequest(task="math", prompt={"q": 1}, reward=RewardSource.OUTSIDE))
        awaiting = await anext(run.awaiting(timeout_s=20))

        with pytest.raises(InvalidRequest, match="expected a finite number, got nan"):
            await run.report_reward(awaiting, float("nan"))
        with pytest.raises(InvalidRequest, match="expected a job of run 'judged'"):
            await run.report_reward("other.job.0", 1.0)

        assert (await job.status())["st"] == "awaiting"
        assert any("await" in reason for reason in await run.why_waiting())


async def test_what_awaits_comes_again_to_a_trainer_that_was_restarted(settings: QueueSettings, scripts: Scripts) -> None:
    async with at_work(scripts):
        async with connect(settings, run=RUN) as run:
            await run.submit([JobRequest(task="math", prompt={"q": i}, id=f"j{i}", reward=RewardSource.OUTSIDE) for i in range(3)])
            first = await anext(run.awaiting(timeout_s=20))
            await first.report(1.0)

        async with connect(settings, run=RUN) as run:
            seen = []
            async for awaiting in run.awaiting(timeout_s=20):
                seen.append(awaiting.job)
                await awaiting.report(0.5)
                if len(seen) == 2:
                    break
            rewards = {job: (await run.job(f"{RUN}.{job}").result(timeout_s=20)).reward for job in ("j0", "j1", "j2")}

    assert sorted([first.job, *seen]) == [f"{RUN}.j{i}" for i in range(3)]
    assert sorted(rewards.values()) == [0.5, 0.5, 1.0]  # type: ignore[type-var]  # none is None, or this fails


async def test_a_reward_that_does_not_come_leaves_a_result_without_one(
    settings: QueueSettings, scripts: Scripts, supervisor: Supervisor, client: AsyncClient
) -> None:
    async with at_work(scripts, reward_deadline_s=0.2), connect(settings, run=RUN) as run:
        job = await run.submit(JobRequest(task="math", prompt={"q": 1}, reward=RewardSource.OUTSIDE))

        await judged_now(client, scripts)
        result = await job.result(timeout_s=20)

        assert (result.outcome, result.reason, result.reward) == (Outcome.INFRA_FAILURE, "reward_missing", None)
        assert result.trajectory_key
        assert await run.report_reward(job, 1.0) is ReportAnswer.LATE
        with pytest.raises(WaitTimeout):
            await anext(run.awaiting(timeout_s=0.05))


async def test_a_cancelled_job_waits_no_more(settings: QueueSettings, scripts: Scripts) -> None:
    async with at_work(scripts), connect(settings, run=RUN) as run:
        job = await run.submit(JobRequest(task="math", prompt={"q": 1}, reward=RewardSource.OUTSIDE))
        awaiting = await anext(run.awaiting(timeout_s=20))

        assert await job.cancel() == "settled"

        assert (await job.result(timeout_s=20)).outcome is Outcome.CANCELLED
        assert await awaiting.report(1.0) is ReportAnswer.LATE


async def test_a_newer_trainer_gives_up_the_groups_that_wait_for_the_older_one(
    settings: QueueSettings, scripts: Scripts, supervisor: Supervisor, client: AsyncClient
) -> None:
    """As any other group in flight: their prompts are drawn anew, by the policy of the trainer that is there."""
    async with at_work(scripts):
        async with connect(settings, run=RUN) as run:
            run.feed(rows(20))
            stream = run.steps(STEP, timeout_s=20)
            asking = asyncio.ensure_future(anext(stream))
            old = await anext(run.awaiting(timeout_s=20))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        async with connect(settings, run=RUN) as run:
            run.feed(rows(20))
            asking = asyncio.ensure_future(anext(run.steps(STEP, timeout_s=30)))
            await wait_until(lambda: _has_ended(run, old.job), "the older groups were given up")
            assert await run.report_reward(old.job, 1.0) in (ReportAnswer.LATE, ReportAnswer.UNKNOWN)
            async with judging(run):
                step = await asking

    assert len(step.groups) == 2
    assert old.record.group not in [group.id for group in step.groups]


# ---- hooks


def ranked(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
    """The longest answer wins; ties by number, so that every group differs."""
    order = sorted(group.members, key=lambda member: (len(member.trajectory.answer) if member.trajectory else 0, member.number))
    return {member.number: {"rank": float(place)} for place, member in enumerate(order)}


async def test_a_hook_sees_each_group_whole_and_the_filter_sees_what_it_says(
    settings: QueueSettings, scripts: Scripts, supervisor: Supervisor
) -> None:
    seen: list[HeldGroup] = []

    async def hook(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
        seen.append(group)
        return ranked(group)

    request = StepRequest(task="math", groups=2, n=4, ahead=0, informative_on="rank")
    async with at_work(scripts, own=True, hold_s=30.0), connect(settings, run=RUN) as run:
        run.group_hook(hook, deadline_s=30.0)
        run.feed(rows(20))

        step = await anext(run.steps(request, timeout_s=20))

    for group in step.groups:
        (held,) = [found for found in seen if found.id == group.id]
        assert [member.number for member in held.members] == [0, 1, 2, 3]
        assert [member.reward for member in held.members] == [0.0, 1.0, 0.0, 1.0]
        assert held.prompt is not None
        assert held.prompt.data["question"] == rows(20)[int(group.prompt_id.partition("-")[2])]["question"]
        assert group.rewards == (0.0, 1.0, 0.0, 1.0)  # the unshaped score stands
        assert [member.record.components["rank"] for member in group.members] == [0.0, 1.0, 2.0, 3.0]
        assert group.record.values == (0.0, 1.0, 2.0, 3.0)


async def test_a_hook_gives_the_score_where_the_task_gave_none(settings: QueueSettings, scripts: Scripts, supervisor: Supervisor) -> None:
    def hook(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
        assert threading.current_thread() is not threading.main_thread()
        return {member.number: {"score": member.number / 4, "rank": float(member.number)} for member in group.members}

    async with at_work(scripts, hold_s=30.0), connect(settings, run=RUN) as run:
        run.group_hook(hook)
        run.feed(rows(20))

        step = await anext(run.steps(STEP, timeout_s=20))

    assert [group.rewards for group in step.groups] == [(0.0, 0.25, 0.5, 0.75)] * 2


async def test_a_hook_sees_what_was_reported_of_a_member(settings: QueueSettings, scripts: Scripts, supervisor: Supervisor) -> None:
    """A judge reports a score and its parts while other members are at work. The hook was told the score, and that it has no parts."""
    seen: list[HeldGroup] = []

    def hook(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
        seen.append(group)
        return {member.number: {"rank": float(member.number)} for member in group.members}

    async def judge(run: Run) -> None:
        async for awaiting in run.awaiting():
            number = member_of(awaiting.job)
            await awaiting.report(number / 4, {"style": number / 8})
            pump.held_back.discard(f"{awaiting.job.rpartition('.')[0]}.{number + 1}")

    pump = AwaitingPump(scripts, hold_s=30.0, held_back={f"{RUN}.e0-{row}.0.{number}" for row in range(20) for number in range(1, 4)})
    async with pumping(pump), connect(settings, run=RUN) as run:
        run.group_hook(hook)
        run.feed(rows(20))
        judging = asyncio.create_task(judge(run), name="judge")
        step = await anext(run.steps(StepRequest(task="math", groups=1, n=4, ahead=0, reward=RewardSource.OUTSIDE), timeout_s=20))
        judging.cancel()

    (held,) = [group for group in seen if group.id == step.groups[0].id]
    # the last one is held by its end, before anybody can report it
    assert [(member.reward, dict(member.components)) for member in held.members[:3]] == [
        (number / 4, {"score": number / 4, "style": number / 8}) for number in range(3)
    ]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (lambda group: {0: {"score": 1.0}}, "the unshaped score stands"),
        (lambda group: {9: {"rank": 1.0}}, "expected members"),
        (lambda group: {0: {"rank": float("nan")}}, "expected a finite number"),
        (lambda group: {0: 1.0}, "expected components by name"),
        (lambda group: 1 / 0, "division by zero"),
    ],
)
async def test_an_error_of_a_hook_is_raised_at_the_next_step(
    settings: QueueSettings, scripts: Scripts, supervisor: Supervisor, said: Callable[[HeldGroup], object], complaint: str
) -> None:
    async with at_work(scripts, own=True, hold_s=30.0), connect(settings, run=RUN) as run:
        run.group_hook(said)  # type: ignore[arg-type]  # what somebody may write
        run.feed(rows(20))

        with pytest.raises((InvalidRequest, ZeroDivisionError), match=complaint):
            await anext(run.steps(STEP, timeout_s=20))


async def test_a_group_whose_hook_is_late_closes_with_what_it_has(
    settings: QueueSettings, scripts: Scripts, supervisor: Supervisor, client: AsyncClient
) -> None:
    late = asyncio.Event()

    async def hook(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
        await late.wait()
        return ranked(group)

    async with at_work(scripts, own=True, hold_s=0.3), connect(settings, run=RUN) as run:
        run.group_hook(hook, deadline_s=0.3)
        run.feed(rows(20))

        asking = asyncio.ensure_future(anext(run.steps(STEP, timeout_s=20)))
        await judged_now(client, scripts)
        await wait_until(lambda: _is_done(asking, scripts), "the step is complete")
        step = await asking

        assert [group.rewards for group in step.groups] == [(0.0, 1.0, 0.0, 1.0)] * 2
        assert all("rank" not in member.record.components for group in step.groups for member in group.members)
        late.set()


async def test_a_hook_comes_before_the_steps_and_once(settings: QueueSettings, supervisor: Supervisor) -> None:
    async with connect(settings, run=RUN) as run:
        run.group_hook(ranked)
        with pytest.raises(InvalidRequest, match="one hook a run, before its steps"):
            run.group_hook(ranked)


async def test_held_groups_are_offered_to_a_hook_that_comes_later(settings: QueueSettings, scripts: Scripts, client: AsyncClient) -> None:
    """A trainer that lost contact, or whose hook was interrupted: the group is held until somebody says something, or its time is over."""
    from pipeline.testing import a_group, carry

    seen = asyncio.Event()

    async def hook(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
        seen.set()
        return ranked(group)

    async with connect(settings, run=RUN) as run:
        template = STEP.template()
        await scripts.accept(RUN, run.incarnation, template, "t", b"t", [a_group(RUN, members=2)], max_waiting=100, window=100)
        held = await carry(scripts, to=Stage.EVAL)
        await ManualWorker(scripts, Stage.EVAL).await_reward(*held, settlement=a_settlement(1.0), reward_deadline_s=None, hold_s=60.0)
        key = scripts.keys.held
        await wait_until(lambda: _has(client, key), "the group is held")

        run.group_hook(hook)

        await asyncio.wait_for(seen.wait(), 20)
        await wait_until(lambda: _is_closed(client, scripts), "the group closed")


async def _has_ended(run: Run, job: str) -> bool:
    """It is there no more when the client has let go of its group already."""
    return (await run.job(job).status()).get("st", "done") == "done"


async def _is_done(asking: asyncio.Future[Step], scripts: Scripts) -> bool:
    await scripts.expire_deadlines()
    return asking.done()


async def _some_expired(scripts: Scripts) -> bool:
    return (await scripts.expire_deadlines())[0] > 0


async def _has(client: AsyncClient, key: str) -> bool:
    return bool(await ask(client, "ZCARD", key))


async def _is_closed(client: AsyncClient, scripts: Scripts) -> bool:
    return bool(await ask(client, "ZCARD", scripts.keys.closed))


async def test_the_blocking_facade_has_all_of_it(settings: QueueSettings, scripts: Scripts, supervisor: Supervisor) -> None:
    def program() -> tuple[list[tuple[float, ...]], float]:
        with connect_blocking(settings, run=RUN) as run:
            run.group_hook(lambda group: {member.number: {"rank": float(member.number)} for member in group.members})
            run.feed(rows(20))
            step = next(run.steps(STEP.model_copy(update={"reward": RewardSource.TASK}), timeout_s=20))
            ranks = [tuple(member.record.components["rank"] for member in group.members) for group in step.groups]
            with_rewards = [group.rewards for group in step.groups]
            assert with_rewards == [(0.0, 1.0, 0.0, 1.0)] * 2
            return ranks, step.index

    async with at_work(scripts, own=True, hold_s=30.0):
        ranks, _ = await asyncio.to_thread(program)

    assert ranks == [(0.0, 1.0, 2.0, 3.0)] * 2


async def test_the_blocking_facade_reports(settings: QueueSettings, scripts: Scripts) -> None:
    def program() -> tuple[str, float]:
        with connect_blocking(settings, run=RUN) as run:
            job = run.submit(JobRequest(task="math", prompt={"q": 1}, reward=RewardSource.OUTSIDE))
            awaiting = next(run.awaiting(timeout_s=20))
            assert awaiting.trajectory().answer == f"answer of {job.id}"
            answer = run.report_reward(awaiting, 0.75)
            return answer.value, job.result(timeout_s=20).reward

    async with at_work(scripts):
        assert await asyncio.to_thread(program) == ("accepted", 0.75)
