"""A step on several ranks: one holds the run, the others a manifest and a reader of bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.trainer_client.pump import Pump
from tests.integration.trainer_client.rows import rows
from tests.integration.trainer_client.test_manifests import two_segments
from tests.unit.batches.bodies import bodies_of
from tests.unit.batches.manifests import a_manifest, a_member
from trainer_client import BodyMissing, BodyReader, ClientClosed, Manifest, StepRequest, connect, connect_reader
from trainer_client.batches.batch import batch_of

RUN = "swe-7b"
RANKS = 64


async def test_a_rank_without_the_run_trains_its_share_until_the_step_is_acked(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    pump.trajectory_of = two_segments

    async with connect(settings, run=RUN) as run, connect_reader(settings) as reader:
        run.feed(rows(40))
        steps = run.steps(StepRequest(task="math", groups=2, n=4), count=2, timeout_s=20)
        step = await anext(steps)
        sent = (await step.manifest()).to_bytes()
        holder = await step.batch(shard=(0, 2), pack=100)
        other = await reader.batch(Manifest.from_bytes(sent), shard=(1, 2), pack=100)
        adapters_own = await reader.rollouts(Manifest.from_bytes(sent), prompts=True)
        same = await step.rollouts(prompts=True)
        await step.ack()
        with pytest.raises(BodyMissing, match="acked"):
            await reader.batch(Manifest.from_bytes(sent), shard=(1, 2), pack=100)
        after = await anext(steps)  # the reader fenced nobody

    assert sorted(rollout.job for batch in (holder, other) for rollout in batch.rollouts) == sorted(rollout.job for rollout in same)
    assert holder.n_microbatches == other.n_microbatches > 1
    assert sum(float(arrays.weights.sum()) for batch in (holder, other) for arrays in batch.microbatches()) == pytest.approx(1.0)
    assert [(rollout.job, rollout.data) for rollout in adapters_own] == [(rollout.job, rollout.data) for rollout in same]
    assert after.index == 2
    with pytest.raises(ClientClosed):
        await reader.fetch(["x"])


@dataclass
class Counted:
    """Bodies of one rank, and the bytes that it read."""

    reader: BodyReader
    bytes_read: int = 0

    async def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        found = await self.reader.fetch(keys)
        self.bytes_read += sum(len(raw) for raw in found if raw is not None)
        return found


@pytest.mark.one_server
async def test_64_ranks_read_their_share_each_and_train_together_what_one_would(
    settings: QueueSettings, client: AsyncClient, keys: Keys
) -> None:
    """512 trajectories of heavy-tailed lengths: none above the fair share of a rank, the longest ten times the shortest."""
    random = np.random.default_rng(5)
    lengths = np.minimum(3_000, 300 * random.lognormal(0.0, 1.0, (64, 8)) + 100).astype(int)
    rewards = random.integers(0, 2, (64, 8))
    manifest = a_manifest(
        *(
            [a_member(n, tokens=(int(t), 50), reward=float(r)) for n, (t, r) in enumerate(zip(*pair, strict=True))]
            for pair in zip(lengths, rewards, strict=True)
        )
    )
    manifest = replace(manifest, tag=keys.tag)
    bodies = bodies_of(manifest)
    await client.mset(bodies)
    fair = sum(map(len, bodies.values())) / RANKS

    async with connect_reader(settings) as reader:
        counted = [Counted(reader) for _ in range(RANKS)]
        batches = [await batch_of(manifest, bodies, shard=(rank, RANKS), pack=4_096) for rank, bodies in enumerate(counted)]
        alone = await batch_of(manifest, reader, pack=4_096)
    await client.delete(*bodies)

    read = [bodies.bytes_read for bodies in counted]
    assert sum(read) == sum(map(len, bodies.values()))
    assert max(read) < 1.3 * fair
    assert len({batch.n_microbatches for batch in batches}) == 1
    assert sorted(rollout.job for batch in batches for rollout in batch.rollouts) == sorted(rollout.job for rollout in alone.rollouts)
    mine, together = (
        np.concatenate([a.weights * a.advantages for b in part for a in b.microbatches()]).astype(np.float64) for part in ([alone], batches)
    )
    assert together.sum() == pytest.approx(mine.sum(), abs=1e-9)
    assert np.abs(together).sum() == pytest.approx(np.abs(mine).sum(), rel=1e-9)


@pytest.mark.one_server
async def test_a_reader_is_told_of_what_does_not_fit_as_a_run_is(settings: QueueSettings) -> None:
    with pytest.raises(InvalidRequest):
        connect_reader(settings, patience_s=-1.0)
