"""A rank's share of a step: what all ranks have together is what one alone would have, whatever comes to whom."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import DamagedBody, InvalidRequest
from pipeline.messages import F32, Trajectory
from pipeline.supervisor.loss_policy import Loss
from tests.unit.batches.bodies import HeldBodies, bodies_of, made_for, with_logprob
from tests.unit.batches.manifests import a_manifest, a_member
from trainer_client.batches.advantages import F64, GRPO, Overlong
from trainer_client.batches.batch import Batch, batch_of
from trainer_client.batches.manifest import Manifest, ManifestGroup, ManifestMember
from trainer_client.batches.padded import PaddedRows, padded
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory
from trainer_client.batches.tensors import as_tensors
from trainer_client.errors import BodyMissing

STEP = a_manifest(
    [a_member(0, tokens=(8, 40)), a_member(1, tokens=(30,), reward=0.0), a_member(3, tokens=(20,), loss=Loss.MASK, reward=0.0)],
    [a_member(0, tokens=(12,), reward=0.5), a_member(1, tokens=(), attempt=0, reward=0.0), a_member(2, tokens=(1, 64), reward=0.25)],
    [a_member(0, tokens=(100,))],
)
"""Masked, without a trajectory, with a segment without a loss token, alone in its group, longer than a microbatch."""
BODIES = bodies_of(STEP)
MASKED, BARE, LOSSLESS = "r.e0-0.0.3", "r.e0-1.0.1", ("r.e0-1.0.2", 0)


async def on_all_ranks(world: int, manifest: Manifest = STEP, **how: Any) -> list[Batch]:
    """One batch a rank."""
    return [await batch_of(manifest, HeldBodies(BODIES), shard=(rank, world), **how) for rank in range(world)]


def rows_of_all(batches: Sequence[Batch]) -> list[tuple[str, int]]:
    return sorted((row.rollout.job, row.number) for batch in batches for rows in batch.rows for row in rows)


def summed(batches: Sequence[Batch]) -> dict[str, float]:
    """Sums over all microbatches of all ranks, as losses are."""
    total = {"tokens": 0.0, "loss": 0.0, "weights": 0.0, "weighted": 0.0, "logprobs": 0.0}
    for batch in batches:
        for arrays in batch.microbatches():
            total["tokens"] += arrays.n_tokens
            total["loss"] += float(arrays.loss_mask.sum())
            total["weights"] += float(arrays.weights.sum(dtype=np.float64))
            total["weighted"] += float((arrays.weights * arrays.advantages).sum(dtype=np.float64))
            total["logprobs"] += float((arrays.weights * arrays.behaviour_logprobs).sum(dtype=np.float64))
    return total


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("how", [{"pack": 64}, {"rows": 2}], ids=["packed", "padded"])
@pytest.mark.parametrize("loss", [{"loss": "token_mean"}, {"loss": "trajectory_mean"}, {"loss": "fixed_length", "length": 50}], ids=str)
async def test_ranks_together_train_what_one_alone_would(world: int, how: dict[str, Any], loss: dict[str, Any]) -> None:
    alone = await on_all_ranks(1, pack=64, **loss)

    together = await on_all_ranks(world, **how, **loss)

    assert len({batch.n_microbatches for batch in together}) == 1
    assert rows_of_all(together) == rows_of_all(alone)
    assert summed(together) == pytest.approx(summed(alone), rel=1e-6)
    assert {batch.step_loss_tokens for batch in together} == {4 + 20 + 15 + 6 + 32 + 50}
    assert {batch.step_trajectories for batch in together} == {5}
    whole = 127 / (5 * 50) if loss["loss"] == "fixed_length" else 1.0
    assert summed(alone)["weights"] == pytest.approx(whole, rel=1e-6)


async def test_a_rank_reads_its_own_trajectories_and_no_other() -> None:
    for rank in range(3):
        bodies = HeldBodies(BODIES)
        batch = await batch_of(STEP, bodies, shard=(rank, 3), pack=64)
        keys = {STEP.trajectory_key(group, member): group.job(member) for group, member in STEP.entries}
        own = {rollout.job for rollout in batch.rollouts}
        assert bodies.bytes_read == sum(len(raw) for key, raw in BODIES.items() if keys[key] in own)


async def test_what_has_no_loss_is_left_out_unless_asked_for() -> None:
    [without] = await on_all_ranks(1, rows=8)
    [kept] = await on_all_ranks(1, rows=8, keep_masked=True)

    assert MASKED not in {rollout.job for rollout in without.rollouts}
    assert set(rows_of_all([kept])) - set(rows_of_all([without])) == {(MASKED, 0)}, "a segment that nobody sampled gives no row either"
    assert LOSSLESS not in rows_of_all([kept])
    assert BARE not in {rollout.job for rollout in kept.rollouts}
    assert summed([kept])["weighted"] == pytest.approx(summed([without])["weighted"], rel=1e-6)
    assert kept.step_loss_tokens == without.step_loss_tokens


async def test_members_without_a_row_stay_in_the_baseline() -> None:
    [batch] = await on_all_ranks(1, pack=64, advantage=GRPO(std=False))

    found = {rollout.job: rollout.advantage for rollout in batch.rollouts}
    assert found == pytest.approx({"r.e0-0.0.0": 2 / 3, "r.e0-0.0.1": -1 / 3, "r.e0-1.0.0": 0.25, "r.e0-1.0.2": 0.0, "r.e0-2.0.0": 0.0})


async def test_a_row_that_is_longer_than_a_microbatch_is_one_of_its_own_and_named() -> None:
    [batch] = await on_all_ranks(1, pack=64)

    assert [(row.tokens, STEP.entries[row.rollout][0].id) for row in batch.oversized] == [(100, "r.e0-2.0")]
    assert next(batch.microbatches()).token_ids.shape == (100,)
    assert max(arrays.n_tokens for arrays in list(batch.microbatches())[1:]) <= 64


async def test_a_rank_without_work_keeps_step_with_tokens_that_weigh_nothing() -> None:
    batches = await on_all_ranks(7, rows=1)

    [idle] = [batch for batch in batches if not batch.rollouts][:1]
    assert idle.n_microbatches == batches[0].n_microbatches > 0
    for arrays in idle.microbatches():
        assert isinstance(arrays, PaddedRows)
        assert arrays.token_ids.shape == (1, 1)
        assert not arrays.weights.any()
        assert not arrays.loss_mask.any()


async def test_a_step_in_which_nothing_has_a_loss_has_no_microbatch_on_any_rank() -> None:
    nothing = a_manifest([a_member(0, loss=Loss.MASK), a_member(1, loss=Loss.MASK)])

    assert [batch.n_microbatches for batch in await on_all_ranks(3, nothing, pack=64)] == [0, 0, 0]


async def test_advantages_a_token_pass_through() -> None:
    def by_turn(rollout: Rollout) -> list[F32] | None:
        if rollout.job != "r.e0-0.0.0":
            return None
        return [np.arange(len(segment.token_ids), dtype=np.float32) for segment in rollout.trajectory.segments]

    [batch] = await on_all_ranks(1, rows=1, token_advantages=by_turn, advantage=GRPO(std=False))

    found = {
        (rows[0].rollout.job, rows[0].number): arrays.advantages[0] for rows, arrays in zip(batch.rows, batch.microbatches(), strict=True)
    }
    np.testing.assert_array_equal(found["r.e0-0.0.0", 1], [0.0] * 20 + list(range(20, 40)))
    np.testing.assert_allclose(found["r.e0-0.0.1", 0], [0.0] * 15 + [-1 / 3] * 15)


def gone(bodies: dict[str, bytes], key: str) -> None:
    del bodies[key]


def torn(bodies: dict[str, bytes], key: str) -> None:
    bodies[key] = bodies[key][:20]


def another(bodies: dict[str, bytes], key: str) -> None:
    bodies[key] = next(raw for other, raw in bodies.items() if other != key)


@pytest.mark.parametrize("harm", [gone, torn, another])
async def test_a_trajectory_that_cannot_be_had_refuses_the_batch_or_is_left_out_and_named(harm: Any) -> None:
    bodies = dict(BODIES)
    harm(bodies, STEP.trajectory_key(*STEP.entries[1]))
    how: dict[str, Any] = {"pack": 64, "advantage": GRPO(std=False)}

    with pytest.raises((BodyMissing, DamagedBody, BadTrajectory), match=r"r\.e0-0\.0\.1"):
        await batch_of(STEP, HeldBodies(bodies), **how)
    rest = await batch_of(STEP, HeldBodies(bodies), missing="skip", **how)

    [whole] = await on_all_ranks(1, **how)
    assert list(rest.missing) == ["r.e0-0.0.1"]
    assert set(rows_of_all([whole])) - set(rows_of_all([rest])) == {("r.e0-0.0.1", 0)}
    assert rest.n_microbatches == whole.n_microbatches, "other ranks know nothing of it"
    assert summed([rest])["weights"] == pytest.approx(1 - 15 / 127)
    assert {r.job: r.advantage for r in rest.rollouts}["r.e0-0.0.0"] == pytest.approx(2 / 3)


async def test_a_logprob_that_is_none_is_refused_before_any_array_is_made() -> None:
    def broken(group: ManifestGroup, member: ManifestMember) -> Trajectory:
        made = made_for(group, member)
        return with_logprob(made, member.tokens[0] - 1, math.nan) if group.job(member) == "r.e0-2.0.0" else made

    bodies = HeldBodies(bodies_of(STEP, broken))

    with pytest.raises(BadTrajectory, match=r"r\.e0-2\.0\.0"):
        await batch_of(STEP, bodies, pack=64)
    assert list((await batch_of(STEP, bodies, pack=64, missing="skip")).missing) == ["r.e0-2.0.0"]


async def test_parts_of_a_step_are_batches_of_their_own() -> None:
    """Several optimizer steps on one step: each has the loss of its own groups, and the same advantages."""
    parts = [await on_all_ranks(2, part, pack=64) for part in STEP.parts(3)]

    assert [batches[0].step_loss_tokens for batches in parts] == [39, 38, 50]
    assert [round(summed(batches)["weights"], 6) for batches in parts] == [1.0, 1.0, 1.0]
    [whole] = await on_all_ranks(1, pack=64)
    advantages = {rollout.job: rollout.advantage for batches in parts for batch in batches for rollout in batch.rollouts}
    assert advantages == {rollout.job: rollout.advantage for rollout in whole.rollouts}


class Own:
    """An advantage without a description of its own."""

    def of_group(self, rewards_M: F64) -> F64:
        return rewards_M


class TooFew:
    """An advantage that loses members."""

    def __repr__(self) -> str:
        return "TooFew()"  # the name of a test, the same in every process

    def of_group(self, rewards_M: F64) -> F64:
        return rewards_M[:-1]


async def test_ranks_with_other_arguments_can_tell() -> None:
    hows: list[dict[str, Any]] = [
        {"pack": 64},
        {"pack": 65},
        {"rows": 64},
        {"pack": 64, "loss": "trajectory_mean"},
        {"pack": 64, "keep_masked": True},
        {"pack": 64, "advantage": GRPO(std=False)},
        {"pack": 64, "overlong": Overlong(max_tokens=50, margin=10)},
        {"pack": 64, "advantage": Own()},
        {"pack": 64, "advantage": {group.job(member): 0.0 for group, member in STEP.entries}},
    ]

    said = [{batch.agreement for batch in await on_all_ranks(2, **how)} for how in hows]
    other_step, other_world = await on_all_ranks(2, replace(STEP, step=4), pack=64), await on_all_ranks(3, pack=64)

    assert [len(words) for words in said] == [1] * len(hows), "ranks with the same ones agree"
    assert {batch.agreement for batch in await on_all_ranks(2, advantage=Own(), pack=64)} == said[7]
    assert len(set.union(*said, {other_step[0].agreement}, {other_world[0].agreement})) == len(hows) + 2


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({}, "expected one of pack=<tokens a microbatch>"),
        ({"pack": 8, "rows": 2}, "expected one of pack"),
        ({"pack": 8, "loss": "mean"}, "loss: expected one of token_mean"),
        ({"pack": 8, "loss": "fixed_length"}, "length: expected a length above 0"),
        ({"pack": 8, "shard": (2, 2)}, "rank: expected a whole number from 0 to 1"),
        ({"pack": 8, "shard": 3}, r"shard: expected \(rank, number of ranks\), such as \(0, 1\), got 3"),
        ({"pack": 8, "advantage": "grpo"}, r"advantage: expected GRPO\(\), LeaveOneOut\(\), .* got 'grpo'"),
        ({"pack": 8, "advantage": GRPO}, r"advantage: expected GRPO\(\)"),
        ({"pack": 8, "advantage": TooFew()}, r"advantage: expected one number a member, so 3 for group r\.e0-0\.0, got an array of shape"),
        ({"pack": 8, "missing": "ignore"}, "missing: expected raise or skip"),
        ({"rows": 8, "multiple_of": 0}, "multiple_of: expected a whole number from 1"),
        ({"rows": 8, "pad_id": -1}, "pad_id: expected a whole number from 0"),
    ],
    ids=str,
)
async def test_wrong_use_is_told_before_anything_is_read(how: dict[str, Any], sentence: str) -> None:
    bodies = HeldBodies(BODIES)

    with pytest.raises(InvalidRequest, match=sentence):
        await batch_of(replace(STEP), bodies, **how)
    assert bodies.bytes_read == 0


async def test_bytes_are_made_a_manifest_first() -> None:
    with pytest.raises(InvalidRequest, match=r"manifest: expected a Manifest \(of bytes: Manifest.from_bytes\(raw\)\), got bytes"):
        await batch_of(STEP.to_bytes(), HeldBodies(BODIES), pack=8)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidRequest, match=r"expected the bytes that manifest\.to_bytes"):
        Manifest.from_bytes(None)  # type: ignore[arg-type]  # what is tested


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_tensors_without_torch_say_what_to_do() -> None:
    with pytest.raises(ImportError, match="pip install torch"):
        as_tensors(padded([]))
