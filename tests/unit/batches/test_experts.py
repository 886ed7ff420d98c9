"""Experts of a batch: rows are tokens less one, in one form for all, of a rank's own rollouts only, and nothing is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.blobs import ROUTED_EXPERTS, BlobMissing, DamagedBlob, ExpertRows, Life, SharedFolder
from pipeline.codec import encode
from pipeline.errors import InvalidRequest
from pipeline.messages import Blob, RoutedExperts, Segment, Trajectory
from tests.unit.batches.bodies import HeldBodies, bodies_of, made_for
from tests.unit.batches.manifests import a_manifest, a_member
from trainer_client.batches import BadTrajectory, Manifest, PackedRows, PaddedRows, experts_of
from trainer_client.batches.batch import batch_of
from trainer_client.batches.manifest import ManifestGroup, ManifestMember
from trainer_client.batches.reading import take_rollouts
from trainer_client.batches.rows import rows_of

MODEL = RoutedExperts(layers=3, top_k=2, experts=300)
ROUTED = Callable[[Segment], ExpertRows | None]


def routed(segment: Segment, model: RoutedExperts = MODEL) -> ExpertRows:
    """Experts that tell their token: of all tokens but the last."""
    rows = segment.token_ids[:-1].astype(np.int64)[:, None, None] * 7 + np.arange(model.layers * model.top_k).reshape(model.layers, -1)
    numbers = rows % model.experts
    return numbers.astype(np.uint8) if model.experts <= 256 else numbers.astype(np.uint16)


class Kept:
    """A step whose trajectories have experts in a folder, and how often each job's were read."""

    def __init__(self, folder: Path, manifest: Manifest, of: ROUTED = routed) -> None:
        self.store = CountingFolder(folder, min_free_bytes=0, fsync=False)
        self.manifest = manifest
        self.trajectories: dict[str, Trajectory] = {}

        def made(group: ManifestGroup, member: ManifestMember) -> Trajectory:
            job, whole = group.job(member), made_for(group, member)
            life = Life.new(job, member.attempt)
            segments = tuple(
                segment if (rows := of(segment)) is None else replace(segment, blobs=(self.store.put(life, ROUTED_EXPERTS, rows, part=at),))
                for at, segment in enumerate(whole.segments)
            )
            self.trajectories[job] = replace(whole, segments=segments)
            return self.trajectories[job]

        self.bodies = HeldBodies(bodies_of(manifest, made))


class CountingFolder(SharedFolder):
    """Knows which jobs' blobs were read."""

    def __init__(self, root: Path, *, min_free_bytes: int, fsync: bool) -> None:
        super().__init__(root, min_free_bytes=min_free_bytes, fsync=fsync)
        self.read: list[str] = []

    def get(self, blob: Blob, job: str) -> np.ndarray:
        self.read.append(job)
        return super().get(blob, job)


STEP = a_manifest(
    [a_member(0, tokens=(8, 5)), a_member(1, tokens=(6,), reward=0.0)],
    [a_member(0, tokens=(9,)), a_member(2, tokens=(4,), reward=0.0)],
)


async def test_padded_rows_have_zeros_and_no_mask_where_no_token_was_sent_through_the_model(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STEP)

    batch = await batch_of(STEP, kept.bodies, rows=8, routed_experts=True, blobs=kept.store)
    (arrays,) = batch.microbatches()

    assert isinstance(arrays, PaddedRows)
    assert arrays.routed_experts is not None
    assert arrays.experts_mask is not None
    assert arrays.routed_experts.shape == (*arrays.token_ids.shape, 3, 2)
    assert arrays.routed_experts.dtype.name == "uint16"
    for r, row in enumerate(arrays.rows):
        n = row.n_tokens
        assert np.array_equal(arrays.routed_experts[r, : n - 1], routed(row.segment))
        assert arrays.experts_mask[r].tolist() == [True] * (n - 1) + [False] * (arrays.token_ids.shape[1] - n + 1)
        assert not arrays.routed_experts[r, n - 1 :].any()
        assert np.array_equal(experts_of(row), routed(row.segment))


async def test_packed_rows_lie_end_to_end_and_each_last_token_has_none(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STEP)

    batch = await batch_of(STEP, kept.bodies, pack=100, routed_experts=True, blobs=kept.store)
    (arrays,) = batch.microbatches()

    assert isinstance(arrays, PackedRows)
    assert arrays.routed_experts is not None
    assert arrays.experts_mask is not None
    for row, start, end in zip(arrays.rows, arrays.cu_seqlens, arrays.cu_seqlens[1:], strict=False):
        assert np.array_equal(arrays.routed_experts[start : end - 1], routed(row.segment))
    assert np.flatnonzero(~arrays.experts_mask).tolist() == (arrays.cu_seqlens[1:] - 1).tolist()


async def test_a_microbatch_that_only_keeps_step_has_the_form_of_the_others(tmp_path: Path) -> None:
    one = a_manifest([a_member(0, tokens=(8,)), a_member(1, tokens=(9,), reward=0.0), a_member(2, tokens=(7,))])
    kept = Kept(tmp_path, one)

    batches = [await batch_of(one, kept.bodies, shard=(rank, 2), rows=1, routed_experts=True, blobs=kept.store) for rank in (0, 1)]
    empty = [arrays for batch in batches for arrays in batch.microbatches() if not arrays.rows]

    (arrays,) = empty
    assert arrays.routed_experts is not None
    assert arrays.experts_mask is not None
    assert arrays.routed_experts.shape == (1, 1, 3, 2)
    assert not arrays.experts_mask.any()


async def test_a_rank_reads_those_of_its_own_rollouts_and_nobody_those_that_are_not_asked_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STEP)

    await batch_of(STEP, kept.bodies, rows=8)
    assert kept.store.read == []
    shares = [await batch_of(STEP, kept.bodies, shard=(rank, 2), rows=8, routed_experts=True, blobs=kept.store) for rank in (0, 1)]

    own = [[rollout.job for rollout in batch.rollouts for _ in rollout.trajectory.segments] for batch in shares]
    assert kept.store.read == [*own[0], *own[1]]
    assert len(kept.store.read) == 5


async def test_observations_that_no_call_read_are_zeros_behind_the_last_sampled_token(tmp_path: Path) -> None:
    """A job whose last turn ended in a tool's answer: the model never saw that, so nobody knows its experts, and nothing trained needs
    them."""
    one = a_manifest([a_member(0, tokens=(8,)), a_member(1, tokens=(8,), reward=0.0)])
    whole = made_for(one.groups[0], one.groups[0].members[0])
    mask = np.array([0, 0, 1, 1, 1, 1, 0, 0], np.uint8)
    segment = replace(whole.segments[0], sampled_mask=mask, loss_mask=mask, logprobs=np.where(mask, -1.0, np.nan).astype(np.float32))
    store = SharedFolder(tmp_path, min_free_bytes=0, fsync=False)
    known = routed(segment)[:5]
    blob = store.put(Life.new("r.e0-0.0.0", 2), ROUTED_EXPERTS, known)
    named = replace(whole, segments=(replace(segment, blobs=(blob,)),))
    single = replace(one, groups=(replace(one.groups[0], members=one.groups[0].members[:1]),))
    key = single.trajectory_key(single.groups[0], single.groups[0].members[0])

    (rollout,) = await take_rollouts(single, HeldBodies({key: encode(named)}), routed_experts=True, blobs=store)
    (row,) = rows_of(rollout)

    assert np.array_equal(experts_of(row), np.concatenate([known, np.zeros((2, 3, 2), np.uint16)]))
    too_short = replace(named, segments=(replace(segment, blobs=(replace(blob, shape=(4, 3, 2)),)),))
    with pytest.raises(BadTrajectory, match="segment 0 of 8 tokens"):
        await take_rollouts(single, HeldBodies({key: encode(too_short)}), routed_experts=True, blobs=store)


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (lambda segment: None, "has no routed experts"),
        (lambda segment: np.concatenate([routed(segment), routed(segment)[:1]]), "names routed experts"),
        (lambda segment: routed(segment)[:, 0], "names routed experts"),
    ],
)
async def test_a_trajectory_without_its_own_experts_is_refused_by_name_or_left_out(tmp_path: Path, of: ROUTED, why: str) -> None:
    kept = Kept(tmp_path, STEP, lambda segment: of(segment) if len(segment.token_ids) == 9 else routed(segment))

    with pytest.raises(BadTrajectory, match=rf"r\.e0-1\.0\.0.*{why}"):
        await batch_of(STEP, kept.bodies, rows=8, routed_experts=True, blobs=kept.store)
    batch = await batch_of(STEP, kept.bodies, rows=8, routed_experts=True, blobs=kept.store, missing="skip")

    assert [*batch.missing] == ["r.e0-1.0.0"]
    assert why in batch.missing["r.e0-1.0.0"]


def zero_all(folder: Path, job: str) -> None:
    """As after a loss of power on a store that is not as safe as it said."""
    for path in folder.glob(f"rs/r/{job}/*/*"):
        path.write_bytes(bytes(path.stat().st_size))


async def test_what_is_gone_or_changed_is_never_zeros(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STEP)
    zero_all(tmp_path, "r.e0-0.0.1")

    with pytest.raises(DamagedBlob, match="digest"):
        await batch_of(STEP, kept.bodies, rows=8, routed_experts=True, blobs=kept.store)
    kept.store.drop_jobs("r", ["r.e0-0.0.1"])
    with pytest.raises(BlobMissing, match=r"r\.e0-0\.0\.1"):
        await batch_of(STEP, kept.bodies, rows=8, routed_experts=True, blobs=kept.store)


async def test_two_models_in_one_batch_are_refused(tmp_path: Path) -> None:
    small = RoutedExperts(layers=3, top_k=2, experts=64)
    kept = Kept(tmp_path, STEP, lambda segment: routed(segment, small if len(segment.token_ids) == 9 else MODEL))

    with pytest.raises(BadTrajectory, match=r"uint8 \[N, 3, 2\].*uint16 \[N, 3, 2\]|uint16 \[N, 3, 2\].*uint8 \[N, 3, 2\]"):
        await batch_of(STEP, kept.bodies, rows=8, routed_experts=True, blobs=kept.store)


async def test_without_a_folder_the_setting_is_named(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STEP)

    with pytest.raises(InvalidRequest, match="ROLLSTREAM_BLOBS_DIR"):
        await batch_of(STEP, kept.bodies, rows=8, routed_experts=True)
    rollouts = await take_rollouts(STEP, kept.bodies)
    with pytest.raises(InvalidRequest, match="routed_experts=True"):
        experts_of(rows_of(rollouts[0])[0])
