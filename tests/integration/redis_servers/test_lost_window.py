"""A failover that loses a window, without `wait_replicas`: the trainer goes on from where it stands; nothing waits for what nobody knows.

Each test is the story of one thing that was done in the window (ADR 29, "What the trainer's client does about the window").
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from pipeline.errors import RunLost
from pipeline.messages import Outcome
from pipeline.redis_client import ask
from pipeline.testing import ServerKind, wait_until
from tests.integration.redis_servers.lost_window import PATIENCE_S, RUN, Forgetful, JobsOf, forgetful
from tests.integration.trainer_client.rows import rows
from tests.redis_sets import ClusterSet, SentinelSet
from trainer_client import BodyMissing, JobRequest, StepRequest, connect
from trainer_client.steps import Step

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(120)]
SPEC = StepRequest(task="math", groups=2, n=2, ahead=1)


@pytest.fixture
async def world(request: pytest.FixtureRequest, server_kind: ServerKind, servers: ExitStack) -> AsyncIterator[Forgetful]:
    """See `lost_window`; behind Sentinels, where the test does not say otherwise."""
    made = getattr(request, "param", SentinelSet)(server_kind, servers)
    async with forgetful(made) as world:
        yield world


async def prompts_of(step: Step) -> list[str]:
    """Which they are, when what the trainer needs of them is there."""
    await step.rollouts()
    return [group.prompt_id for group in step.groups]


async def asked_for(steps: AsyncIterator[Step]) -> Step:
    """The next step, in a task."""
    return await anext(steps)


@pytest.mark.parametrize(
    ("world", "acked"),
    [(SentinelSet, True), (SentinelSet, False), (ClusterSet, True)],
    ids=["acked", "in_training", "acked_in_a_cluster"],
    indirect=["world"],
)
async def test_a_step_that_the_trainer_had_is_not_sampled_again(world: Forgetful, acked: bool) -> None:
    """Step 1 was reached and given out in the window, acked or not. The next master has it open and other groups end first: they are for
    step 2. Before, they joined step 1, which nobody asks for any more, and step 2 was one that the trainer had acked: it never came."""
    async with connect(world.settings, run=RUN) as run:
        run.feed(rows(12))
        world.pump.hold_all = True
        steps = run.steps(SPEC, start=1, timeout_s=PATIENCE_S)
        asked = asyncio.create_task(asked_for(steps))
        await world.flying(4)
        await world.begin_window()
        world.pump.held_back, world.pump.hold_all = JobsOf(lambda row: row > 1), False
        first = await asked
        had = await prompts_of(first)
        if acked:
            await first.ack()
        world.pump.held_back = JobsOf(lambda row: row < 2)
        await world.fail_over()
        later = await prompts_of(await anext(steps))
        world.pump.held_back = set()
        if not acked:
            await first.ack()
        async for step in steps:
            later += await prompts_of(step)
            await step.ack()

    assert had == ["e0-0", "e0-1"]
    assert sorted(had + later) == sorted(f"e0-{row}" for row in range(12))


async def test_steps_that_were_opened_and_reached_and_not_given_out_come_whole(world: Forgetful) -> None:
    """The client has read the record of step 2 and of its groups, and what they made is lost: the step comes when it is reached anew."""
    async with connect(world.settings, run=RUN) as run:
        await world.begin_window()
        run.feed(rows(20))
        steps = run.steps(SPEC, start=1, timeout_s=PATIENCE_S)
        prompts = await prompts_of(await anext(steps))
        await wait_until(lambda: 2 in run._inbox.steps, "step 2 was reached")
        await world.fail_over()
        for _ in range(3):
            prompts += await prompts_of(step := await anext(steps))
            await step.ack()

    assert len(set(prompts)) == len(prompts) == 8


async def test_single_jobs_end_once_whatever_of_them_was_lost(world: Forgetful) -> None:
    """Six jobs, five of them submitted before the window. In it each comes one step further than the next."""
    async with connect(world.settings, run=RUN) as run:
        world.pump.hold_all = True
        acked, read, given, ended, waiting = await run.submit([a_request(name) for name in ("acked", "read", "given", "ended", "waiting")])
        await world.begin_window()
        submitted = await run.submit(a_request("submitted"))
        world.pump.held_back, world.pump.hold_all = {waiting.id, submitted.id}, False
        reader = run.results(timeout_s=PATIENCE_S)
        results = {result.job: result for result in [await acked.result(), await read.result(), await given.result()]}
        await wait_until(lambda: ended.id in run._inbox.jobs, "all four have ended")
        await results[acked.id].ack()
        trajectory = await results[read.id].trajectory()
        world.pump.hold_all = True
        await world.fail_over()
        await wait_until(lambda: results[given.id].is_lost, "the client knows what was lost", timeout_s=PATIENCE_S)

        with pytest.raises(BodyMissing, match="runs again: await its result anew"):
            await results[given.id].trajectory()
        world.pump.held_back, world.pump.hold_all = set(), False
        assert await given.result(timeout_s=PATIENCE_S) is results[given.id]
        await results[given.id].trajectory()
        assert await results[read.id].trajectory() is trajectory
        come = [(await anext(reader)).job for _ in range(5)]
        for job in (read, given, ended, waiting, submitted):
            await (await job.result()).ack()
        await wait_until(lambda: acked.id in world.pump.ended[4:], "the acked job ran again, since Redis had lost that it had ended")

    assert sorted(come) == sorted(job.id for job in (read, given, ended, waiting, submitted))


async def test_servers_that_were_attached_and_the_version_are_said_again(world: Forgetful) -> None:
    async with connect(world.settings, run=RUN) as run:
        await run.set_policy_version(1)
        await world.begin_window()
        await run.servers.attach(["http://127.0.0.1:9", "http://127.0.0.1:10"], control="trainer")
        await run.servers.drop("http://127.0.0.1:10")
        await run.set_policy_version(2)
        await world.fail_over()

        async def is_said() -> bool:
            (version,) = await ask(world.client, "HMGET", world.keys.run(RUN), "ver")
            return version == b"2" and [server.url for server in await run.servers.list()] == ["http://127.0.0.1:9"]

        await wait_until(is_said, "both are there again", timeout_s=PATIENCE_S)


async def test_a_cancel_holds(world: Forgetful) -> None:
    """The next master has the job at work, and nobody there has heard of the cancel."""
    async with connect(world.settings, run=RUN) as run:
        world.pump.hold_all = True
        job = await run.submit(a_request("cancelled"))
        await world.begin_window()
        assert await job.cancel() in ("settled", "running")
        await world.fail_over()
        result = await job.result(timeout_s=PATIENCE_S)

    assert result.outcome is Outcome.CANCELLED


async def test_a_trainer_whose_taking_of_the_run_was_lost_is_told_and_goes_on_from_its_state(world: Forgetful) -> None:
    await world.begin_window()
    async with connect(world.settings, run=RUN) as run:
        run.feed(rows(12))
        steps = run.steps(SPEC, start=1, timeout_s=PATIENCE_S)
        prompts = await prompts_of(step := await anext(steps))
        await step.ack()
        await world.fail_over()
        with pytest.raises(RunLost, match=r"Connect again with resume=run\.state_dict\(\)"):
            _ = [step async for step in steps]
        state = run.state_dict()

    async with connect(world.settings, run=RUN, resume=state) as run:
        run.feed(rows(12))
        async for step in run.steps(SPEC, timeout_s=PATIENCE_S):
            prompts += await prompts_of(step)
            await step.ack()
    assert sorted(prompts) == sorted(f"e0-{row}" for row in range(12))


async def test_a_trainer_that_resumes_ahead_of_redis_samples_nothing_again(world: Forgetful) -> None:
    """It acked step 1 in the window, wrote its checkpoint, and died with the master."""
    async with connect(world.settings, run=RUN) as run:
        run.feed(rows(12), shuffle_seed=3, reserve=8)
        world.pump.hold_all = True
        steps = run.steps(SPEC, start=1, timeout_s=PATIENCE_S)
        asked = asyncio.create_task(asked_for(steps))
        await world.flying(4)
        await world.begin_window()
        world.pump.hold_all = False
        prompts = await prompts_of(step := await asked)
        await step.ack()
        checkpoint = run.state_dict()
    await world.fail_over()

    async with connect(world.settings, run=RUN, resume=checkpoint) as run:
        run.feed(rows(12), shuffle_seed=3, reserve=8)
        async for step in run.steps(SPEC, timeout_s=PATIENCE_S):
            prompts += await prompts_of(step)
            await step.ack()
    assert sorted(prompts) == sorted(f"e0-{row}" for row in range(12))


def a_request(name: str) -> JobRequest:
    return JobRequest(task="math", prompt={"question": name}, id=name)
