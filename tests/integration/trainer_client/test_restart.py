"""A trainer dies, restarts, goes on or goes back: in the history that survives each prompt is trained exactly once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from pipeline.errors import InvalidRequest, StaleIncarnation
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.trainer_client.pump import Pump, half_of_prompts_alike
from trainer_client import JobRequest, Run, Step, StepRequest, connect

RUN = "resumed"
SPEC = StepRequest(task="math", groups=2, n=4, ahead=1)
ROWS = [{"question": f"{i} + {i}?"} for i in range(24)]


def prompts(step: Step) -> list[str]:
    return [group.prompt_id for group in step.groups]


async def take(run: Run, count: int, *, start: int | None = None, ack: bool = True) -> dict[int, list[str]]:
    """Trains some steps; which prompts each had."""
    trained = {}
    async for step in run.steps(SPEC, start=start, count=count, timeout_s=20):
        trained[step.index] = prompts(step)
        if ack:
            await step.ack()
    return trained


async def train_to_the_end(run: Run) -> dict[int, list[str]]:
    trained = {}
    async for step in run.steps(SPEC, timeout_s=20):
        trained[step.index] = prompts(step)
        await step.ack()
    return trained


def counts(history: Mapping[int, list[str]]) -> Counter[str]:
    return Counter(prompt for step in history.values() for prompt in step)


async def test_without_a_checkpoint_the_trainer_goes_on_after_the_last_ack(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(ROWS, shuffle_seed=3)
        history = await take(run, 2)
        lost = await take(run, 1, ack=False)

    async with connect(settings, run=RUN) as run:
        run.feed(ROWS, shuffle_seed=3)
        assert run.incarnation == 2
        history |= await train_to_the_end(run)

    assert history[3] == lost[3]
    assert counts(history) == Counter({f"e0-{i}": 1 for i in range(24)})


async def test_with_an_older_checkpoint_the_trainer_goes_back(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    pump.rewarder = half_of_prompts_alike

    async with connect(settings, run=RUN) as run:
        run.feed(ROWS, shuffle_seed=3)
        history = await take(run, 1)
        checkpoint = run.state_dict()
        await take(run, 2)
        await take(run, 1, ack=False)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        run.feed(ROWS, shuffle_seed=3)
        assert run.next_step == 2
        history |= await train_to_the_end(run)

    assert sorted(history) == list(range(1, len(history) + 1))
    assert counts(history) == Counter({f"e0-{i}": 1 for i in range(0, 24, 2)})


async def test_going_back_twice_to_one_checkpoint_loses_and_doubles_nothing(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    """The second return finds the token of the checkpoint in Redis: it goes on in the history that the first return began."""
    async with connect(settings, run=RUN) as run:
        run.feed(ROWS)
        history = await take(run, 2)
        checkpoint = run.state_dict()
        await take(run, 2)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        run.feed(ROWS)
        await take(run, 1, ack=False)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        run.feed(ROWS)
        history |= await train_to_the_end(run)

    assert counts(history) == Counter({f"e0-{i}": 1 for i in range(24)})


@pytest.mark.parametrize("seen", [0, 2], ids=["unpushed at the checkpoint", "outstanding at the checkpoint"])
async def test_prompts_that_are_acked_before_the_feed_has_come_to_them_are_done_with(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, seen: int
) -> None:
    """A trainer dies with steps complete that it had not acked. The next one goes on with them at once, while its feed waits for room in
    the reserve; then the feed comes to their prompts, and used to note them as outstanding. The trainer after that, which goes back to a
    checkpoint behind those steps, trained them once more."""
    async with connect(settings, run=RUN) as run:
        checkpoint = run.state_dict()
        run.feed(ROWS, reserve=8)
        if seen:
            await take(run, seen, ack=False)
            checkpoint = run.state_dict()
        await take(run, 3, ack=False)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        run.feed(ROWS, reserve=1)
        history = await take(run, 8)
        behind = run.state_dict()
        await take(run, 1)

    async with connect(settings, run=RUN, resume=behind) as run:
        run.feed(ROWS)
        history |= await train_to_the_end(run)

    assert counts(history) == Counter({f"e0-{i}": 1 for i in range(24)})


async def test_tokens_of_an_update_that_was_lost_before_the_ack_are_trained_by_nobody(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    """A trainer updates its servers and dies before it acks the step. The next one has the weights of before the update, and would find
    a step that was sampled by those of after it: a policy that nobody has any more."""
    sampled_by = "1.0"
    pump.version_of = lambda _: sampled_by
    async with connect(settings, run=RUN) as run:
        await run.set_policy_version(0)
        checkpoint = run.state_dict()
        run.feed(ROWS)
        await take(run, 1, ack=False)
        await run.set_policy_version(1)
        sampled_by = "1.1"
        await take(run, 3, ack=False)  # up to two steps behind the one that was trained

    sampled_by = "2.0"
    async with connect(settings, run=RUN, resume=checkpoint) as run:
        await run.set_policy_version(0)
        run.feed(ROWS)
        versions = set()
        history = {}
        async for step in run.steps(SPEC, timeout_s=20):
            history[step.index] = prompts(step)
            versions |= {version for group in step.groups for version in (group.record.first_version, group.record.last_version)}
            await step.ack()

    assert versions == {"2.0"}
    assert counts(history) == Counter({f"e0-{i}": 1 for i in range(24)})


async def test_a_restart_after_going_back_and_no_checkpoint_goes_on_there(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(ROWS)
        history = await take(run, 1)
        checkpoint = run.state_dict()
        await take(run, 3)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        run.feed(ROWS, reserve=4)
        history |= await take(run, 1)

    async with connect(settings, run=RUN) as run:
        run.feed(ROWS)
        history |= await train_to_the_end(run)

    assert counts(history) == Counter({f"e0-{i}": 1 for i in range(24)})


async def test_a_newer_trainer_fences_the_older_one(settings: QueueSettings) -> None:
    async with connect(settings.model_copy(update={"run_ttl_s": 1.0}), run=RUN) as old:
        job = await old.submit(JobRequest(task="math", prompt={"question": "?"}))
        steps = old.steps(SPEC)

        async with connect(settings, run=RUN) as new:
            for wait in (job.result(timeout_s=20), anext(steps), old.submit(JobRequest(task="math", prompt={"question": "?"}))):
                with pytest.raises(StaleIncarnation, match="incarnation 1 is fenced off, 2 is current: another trainer took the run over"):
                    await wait
            assert new.incarnation == 2
            assert await new.job(job.id).cancel() == "settled"


@pytest.mark.one_server
async def test_two_runs_on_one_fleet_never_see_each_others_results(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run="first") as first, connect(settings, run="second") as second:
        first.feed(ROWS)
        second.feed(ROWS[:6])
        job = await second.submit(JobRequest(task="math", prompt={"question": "?"}))
        one = [step async for step in first.steps(SPEC, count=2, timeout_s=20)]
        two = [step async for step in second.steps(SPEC, timeout_s=20)]
        await job.result(timeout_s=20)

    assert {group.id.partition(".")[0] for step in one for group in step.groups} == {"first"}
    assert sorted(group.id for step in two for group in step.groups) == [f"second.e0-{i}.0" for i in range(6)]


@pytest.mark.one_server
async def test_what_does_not_fit_the_run_that_goes_on_is_refused(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(ROWS, shuffle_seed=3)
        await take(run, 2)
        state = run.state_dict()

    async with connect(settings, run=RUN) as run:
        with pytest.raises(InvalidRequest, match="was fed with shuffle_seed=3, got 4"):
            run.feed(ROWS, shuffle_seed=4)
        with pytest.raises(InvalidRequest, match="was fed with rows=24, got 5"):
            run.feed(ROWS[:5], shuffle_seed=3)
        with pytest.raises(InvalidRequest, match="has acked its steps up to 2, got 1: go on with start=3"):
            await anext(run.steps(SPEC, start=1))

    for broken, sentence in (
        ({**state, "run": "other"}, "expected the state of run 'resumed', got that of run 'other'"),
        ({**state, "schema_version": 99}, "written by a newer version"),
        ({**state, "token": 7}, "expected what run.state_dict"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            await connect(settings, run=RUN, resume=broken).__aenter__()


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.parametrize("seed", range(4))
async def test_lives_that_end_anywhere_and_begin_at_any_checkpoint(
    seed: int, settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    """A trainer writes a checkpoint now and then, dies with or without an ack of its last step, and begins again at its last checkpoint,
    at an older one of the same history, or with none. What counts is the history that survives: of each life, the steps it acked before
    the point at which the next one began."""
    chance = random.Random(seed)
    pump.rewarder = half_of_prompts_alike
    history: dict[int, list[str]] = {}
    checkpoints: list[Mapping[str, object]] = []
    resume: Mapping[str, object] | None = None

    for _ in range(7):
        async with connect(settings, run=RUN, resume=resume) as run:
            run.feed(ROWS, epochs=2, shuffle_seed=seed, reserve=chance.choice([3, 8, 100]))
            begins_at = run.next_step or 1
            history = {index: step for index, step in history.items() if index < begins_at}
            for _ in range(chance.randrange(1, 4)):
                async for step in run.steps(SPEC, count=1, timeout_s=20):
                    if chance.random() < 0.8:
                        await step.ack()
                        history[step.index] = prompts(step)
                        if chance.random() < 0.5:
                            checkpoints.append(run.state_dict())
        how = chance.randrange(3)
        if how == 0 or not checkpoints:
            resume = None
        else:
            del checkpoints[chance.randrange(len(checkpoints)) + 1 :]
            resume = checkpoints[-1]

    async with connect(settings, run=RUN, resume=resume) as run:
        run.feed(ROWS, epochs=2, shuffle_seed=seed)
        history = {index: step for index, step in history.items() if index < (run.next_step or 1)}
        history |= await train_to_the_end(run)

    assert counts(history) == Counter({f"e{epoch}-{i}": 1 for epoch in range(2) for i in range(0, 24, 2)})
