"""What a trainer is told of the groups it trains: how old they are, what of them gets a loss; and how it is told what cannot be (ADR 6)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.messages import StopReason
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.supervisor.loss_policy import Loss
from pipeline.supervisor.step_spec import OnStale
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump, half_of_prompts_alike
from tests.integration.trainer_client.rows import member_of, rows
from trainer_client import Run, Step, StepRequest, WaitTimeout, connect

RUN = "swe-7b"


async def fed_with_nothing(run: Run, dataset: Iterable[object]) -> Step:
    """The first step of a run without prompts."""
    run.feed(dataset)
    return await anext(run.steps(StepRequest(task="math", groups=4, n=2), timeout_s=20))


async def test_a_group_says_how_old_its_oldest_member_is_when_it_is_handed_over(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    pump.version_of = lambda job: "1.3" if member_of(job) == 2 else "1.5"

    async with connect(settings, run=RUN) as run:
        assert run.policy_version == ""
        run.feed(rows(8))
        steps = run.steps(StepRequest(task="math", groups=1, n=4, max_staleness=1), start=1, count=3, timeout_s=20)
        [unknown] = (await anext(steps)).groups
        await run.set_policy_version(4)
        [young] = (await anext(steps)).groups
        await run.set_policy_version(5)
        [old] = (await anext(steps)).groups

        assert (unknown.staleness, unknown.is_stale) == (None, False)
        assert (young.staleness, young.is_stale) == (1, False)
        assert (old.staleness, old.is_stale) == (2, True)
        assert run.policy_version == "1.5"
        with pytest.raises(InvalidRequest, match="expected 5 or more"):
            await run.set_policy_version(4)


async def test_a_step_for_which_all_groups_are_too_old_says_so_and_goes_on_when_they_are_not(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    """A trainer asks for a step before it has updated by the one that it has. All is dropped; the wait spoke of 0 groups only."""
    pump.version_of = lambda _: "1.0"
    request = StepRequest(task="math", groups=1, n=4, ahead=0, max_staleness=0, on_stale=OnStale.DROP)

    async with connect(settings, run=RUN) as run:
        run.feed(rows(8))
        await run.set_policy_version(0)
        first = await anext(run.steps(request, start=1, timeout_s=20))
        with pytest.raises(WaitTimeout, match=r"too old for step 2 \(max_staleness=0\).*set_policy_version or ack.*[1-9]\d* stale"):
            await anext(run.steps(request, start=2, timeout_s=1.0))
        await first.ack()
        second = await anext(run.steps(request, start=2, timeout_s=20))

        assert [group.is_stale for group in second.groups] == [False]


async def test_members_are_masked_or_left_out_by_why_they_stopped(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    stops = (StopReason.FINISHED, StopReason.TOKENS, StopReason.TURNS, StopReason.STUCK)
    pump.stop_of = lambda job: stops[member_of(job) % 4]

    async with connect(settings, run=RUN) as run:
        run.feed(rows(8))
        loss = {StopReason.STUCK: Loss.EXCLUDE, StopReason.TURNS: Loss.MASK}
        request = StepRequest(task="math", groups=1, n=8, min_members=4, loss=loss)
        step = await anext(run.steps(request, timeout_s=20))
        [group] = step.groups

        assert [member.record.member for member in group.members] == [0, 1, 2, 4, 5, 6]
        assert [member.loss for member in group.members] == ["train", "mask", "mask"] * 2
        assert [member.loss for member in group.others] == ["exclude"] * 2
        assert group.rewards == (0.0, 1.0, 0.0, 0.0, 1.0, 0.0)  # a masked one stays in the baseline
        for member, trajectory in zip(group.members, await group.trajectories(), strict=True):
            for segment in trajectory.segments:
                expected = segment.sampled_mask if member.loss == "train" else np.zeros_like(segment.sampled_mask)
                assert np.array_equal(segment.loss_mask, expected)
                assert segment.sampled_mask.sum() == 7
                assert not segment.loss_mask.flags.writeable


async def test_the_prompts_of_each_epoch_add_up(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    pump.rewarder = half_of_prompts_alike

    async with connect(settings, run=RUN) as run:
        run.feed(rows(10), epochs=2, shuffle_seed=3)
        async for step in run.steps(StepRequest(task="math", groups=3, n=4), timeout_s=20):
            for count in (await run.statistics()).epochs.values():
                assert count.pushed == count.trained + count.filtered + count.dead + count.left
                assert 0 <= count.left <= 10
            await step.ack()
        epochs = (await run.statistics()).epochs

    assert {epoch: (c.pushed, c.trained, c.filtered, c.dead, c.left) for epoch, c in epochs.items()} == {
        0: (10, 5, 5, 0, 0),
        1: (10, 5, 5, 0, 0),
    }


async def test_a_prompt_that_is_fed_again_after_going_back_is_counted_once(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    request = StepRequest(task="math", groups=2, n=2)
    async with connect(settings, run=RUN) as run:
        run.feed(rows(6))
        before = run.state_dict()
        await (await anext(run.steps(request, start=1, timeout_s=20))).ack()

    async with connect(settings, run=RUN, resume=before) as run:
        run.feed(rows(6))
        async for step in run.steps(request, start=1, timeout_s=20):
            await step.ack()
        [count] = (await run.statistics()).epochs.values()

    assert (count.pushed, count.trained, count.left) == (6, 6, 0)


@pytest.mark.parametrize("indexed", [True, False])
async def test_a_data_set_without_rows_is_an_error_at_once(settings: QueueSettings, indexed: bool) -> None:
    async with connect(settings, run=RUN) as run:
        with pytest.raises(InvalidRequest, match="expected at least one row, got none"):
            await fed_with_nothing(run, [] if indexed else iter(()))


async def test_a_policy_that_no_supervisor_knows_is_refused_and_one_that_went_away_is_named(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """The supervisor with the package is replaced by one without it while the step waits: its groups stay, and the trainer hears why."""
    request = StepRequest(task="math", groups=1, n=2, policy="somebody_elses")
    unknown = "No living supervisor knows the policy 'somebody_elses' of step 1"
    await wait_until(lambda: ask(client, "EXISTS", keys.policies), "a supervisor said what it knows")
    async with connect(settings, run=RUN) as run:
        run.feed(rows(4))
        with pytest.raises(InvalidRequest, match="expected a policy that a supervisor knows"):
            await anext(run.steps(request, start=1, timeout_s=20))
        await client.zadd(keys.policies, {"somebody_elses": (await client.time())[0] * 1000})
        with pytest.raises(WaitTimeout) as waited:
            await anext(run.steps(request, start=1, timeout_s=0.5))
        assert not any(unknown in why for why in waited.value.why)
        await client.zrem(keys.policies, "somebody_elses")
        with pytest.raises(WaitTimeout) as waited:
            await anext(run.steps(request, start=1, timeout_s=0.1))

    assert any(unknown in why for why in waited.value.why)
