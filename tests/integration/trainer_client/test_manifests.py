"""A step as plain values: its manifest, and its members as rollouts."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from pipeline.errors import DamagedBody
from pipeline.messages import StopReason, Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.supervisor.loss_policy import Loss
from pipeline.testing import a_segment, a_trajectory
from tests.integration.trainer_client.pump import Pump
from tests.integration.trainer_client.rows import member_of, rows
from trainer_client import BodyMissing, Run, Step, StepRequest, connect
from trainer_client.batches.advantages import GRPO
from trainer_client.batches.loss_weights import StepTotals
from trainer_client.batches.manifest import Manifest

RUN = "swe-7b"
SPEC = StepRequest(task="math", groups=2, n=4)


def two_segments(job: str) -> Trajectory:
    """Other lengths and arrays for every job."""
    seed = zlib.crc32(job.encode())
    return a_trajectory(segments=(a_segment(tokens=10 + seed % 50, sampled=5, seed=seed), a_segment(tokens=9, sampled=4, seed=seed + 1)))


def cut_off(job: str) -> StopReason:
    """The last member of each group met the limit of tokens."""
    return StopReason.TOKENS if member_of(job) == 3 else StopReason.FINISHED


async def a_step(run: Run) -> Step:
    run.feed(rows(40))
    return await anext(run.steps(SPEC, timeout_s=20))


@pytest.mark.one_server
async def test_rollouts_are_the_members_of_a_step_with_what_each_got(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    pump.trajectory_of, pump.stop_of = two_segments, cut_off

    async with connect(settings, run=RUN) as run:
        step = await a_step(run)
        rollouts = await step.rollouts(advantage=GRPO(std=False), prompts=True)
        of_a_group = await step.groups[1].rollouts(advantage=GRPO(std=False), prompts=True)
        halves = [await step.rollouts(shard=(rank, 2)) for rank in range(2)]

    assert [rollout.job for rollout in rollouts] == [member.job for group in step.groups for member in group.members]
    assert [(rollout.reward, rollout.advantage) for rollout in rollouts] == [(0.0, -0.5), (1.0, 0.5)] * 4
    assert [rollout.loss for rollout in rollouts] == [Loss.TRAIN, Loss.TRAIN, Loss.TRAIN, Loss.MASK] * 2
    for rollout, group in zip(rollouts, np.repeat(np.array(step.groups), 4), strict=True):
        assert (rollout.run, rollout.step, rollout.group, rollout.group_size) == (RUN, 1, group.id, 4)
        assert rollout.data == rows(40)[int(rollout.prompt_id.partition("-")[2])]
        for found, made in zip(rollout.trajectory.segments, two_segments(rollout.job).segments, strict=True):
            np.testing.assert_array_equal(found.logprobs, made.logprobs)
            np.testing.assert_array_equal(found.loss_mask, made.loss_mask * (rollout.loss is Loss.TRAIN))
    assert [(one.job, one.advantage, one.data) for one in of_a_group] == [(one.job, one.advantage, one.data) for one in rollouts[4:]]
    assert sorted(rollout.job for half in halves for rollout in half) == sorted(rollout.job for rollout in rollouts)
    assert all(halves)


@pytest.mark.one_server
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
async def test_a_manifest_has_the_sizes_whether_a_record_told_them_or_an_older_worker_did_not(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, told: bool
) -> None:
    pump.trajectory_of, pump.tells_sizes = two_segments, told

    async with connect(settings, run=RUN) as run:
        manifest = await (await a_step(run)).manifest()

    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert (manifest.run, manifest.step, len(manifest.groups)) == (RUN, 1, 2)
    assert manifest.totals == StepTotals(loss_tokens=8 * 9, trajectories=8)
    for group, member in manifest.entries:
        made = two_segments(group.job(member))
        assert member.tokens == tuple(len(segment.token_ids) for segment in made.segments)
        assert (member.loss_tokens, member.sampled_tokens) == ((5, 4), 9)


@pytest.mark.one_server
async def test_no_trajectory_is_read_for_a_manifest_and_one_that_is_gone_is_named(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient
) -> None:
    async with connect(settings, run=RUN) as run:
        step = await a_step(run)
        gone, damaged = step.groups[0].members[1], step.groups[1].members[0]
        for member in (gone, damaged):
            await ask(client, "DEL", member.trajectory_key)
        manifest = await step.manifest()
        with pytest.raises(BodyMissing, match=gone.job):
            await step.rollouts()
        await ask(client, "SET", damaged.trajectory_key, b"\x00\x93", "PX", 60_000)
        with pytest.raises(DamagedBody, match=damaged.job):
            await step.groups[1].rollouts()
        rest = await step.rollouts(advantage=GRPO(std=False), missing="skip")

    assert [rollout.job for rollout in rest] == [
        job for group, member in manifest.entries if (job := group.job(member)) not in (gone.job, damaged.job)
    ]
    assert [rollout.advantage for rollout in rest] == [-0.5, -0.5, 0.5, 0.5, -0.5, 0.5], "who is gone stays in the baseline"
    assert {rollout.group_size for rollout in rest} == {4}
