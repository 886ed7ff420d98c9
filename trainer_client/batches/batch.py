"""A rank's share of a step as microbatches of arrays.

Protocol: everything that ranks must agree on is computed by each from the manifest (advantages, weights, the plan of all ranks); then the
rank reads the trajectories of its own rollouts and checks them all, before the first array is made. So what cannot be had is an error of
`batch`, in front of the first collective call of a step and not between two of them.

Left out are rows without a loss token: their weights are all 0, and so is what they would cost. `keep_masked` keeps them, for a term of the
loss that is over sampled tokens, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TypedDict

from pipeline.blobs import BlobStore
from pipeline.messages import F32
from pipeline.requests import bounded_int
from trainer_client.batches.advantages import GRPO, Advantage, Overlong
from trainer_client.batches.experts import form_of
from trainer_client.batches.loss_weights import LossMean, LossWeights
from trainer_client.batches.manifest import Manifest, ManifestMember
from trainer_client.batches.packed import PackedRows, packed
from trainer_client.batches.padded import PaddedRows, padded
from trainer_client.batches.partition import RowPlace, check_shard, plan
from trainer_client.batches.reading import Bodies, Missing, check_reading, read_rollouts
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, Row, rows_of
from trainer_client.batches.step_advantages import GivenAdvantages, advantages_of

Microbatch = PaddedRows | PackedRows
TokenAdvantages = Callable[[Rollout], Sequence[F32] | None]
"""Advantages a token: float32, shape [T], for each segment of a rollout; None = its one advantage."""


class BatchHow(TypedDict, total=False):
    """How a batch is made: the arguments of `batch_of` by name."""

    advantage: Advantage | GivenAdvantages
    overlong: Overlong | None
    token_advantages: TokenAdvantages | None
    loss: LossMean
    length: int
    pack: int | None
    rows: int | None
    pad_id: int
    multiple_of: int
    keep_masked: bool
    prompts: bool
    routed_experts: bool
    images: bool
    missing: Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one rank trains of a step."""

    run: str
    step: int
    rank: int
    world: int
    rollouts: tuple[Rollout, ...]
    """Its own, in the order of the step; those without a row are left out."""
    step_loss_tokens: int
    """Tokens that have a loss, over all ranks."""
    step_trajectories: int
    """Trajectories that have one, over all ranks."""
    agreement: str
    """Digest of the manifest and of all arguments that ranks must have alike. Ranks with different ones would wait for each other for ever,
    or add up what does not belong together: compare them where a step begins."""
    oversized: tuple[RowPlace, ...] = ()
    """Rows of its own that are longer than `pack`; each is a microbatch of its own."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Jobs of its own whose trajectory was left out as `missing="skip"` asks for, and why. What it would have had in the sum of
    weights is gone: the loss is smaller by that, on all ranks alike."""
    rows: tuple[tuple[Row, ...], ...]
    """Of each microbatch; none where the rank only keeps step with the others."""
    arrays: Callable[[Sequence[Row]], Microbatch]
    """Makes the arrays of a microbatch."""

    @property
    def n_microbatches(self) -> int:
        """As many as every other rank has."""
        return len(self.rows)

    @property
    def n_tokens(self) -> int:
        """Tokens of all its rows, padding left out."""
        return sum(row.n_tokens for rows in self.rows for row in rows)

    def microbatches(self) -> Iterator[Microbatch]:
        """The arrays, made one microbatch at a time, each time anew: packed ones with `pack`, padded ones with `rows`.

        One without rows has a single padding token without a loss: the rank makes the same collective calls as the others.
        """
        return map(self.arrays, self.rows)

    def __repr__(self) -> str:
        return (
            f"<Batch step={self.step} rank={self.rank}/{self.world} rollouts={len(self.rollouts)} tokens={self.n_tokens} "
            f"microbatches={self.n_microbatches}>"
        )


async def batch_of(
    manifest: Manifest,
    bodies: Bodies,
    *,
    shard: tuple[int, int] = (0, 1),
    advantage: Advantage | GivenAdvantages = GRPO(),  # noqa: B008  # a frozen value
    overlong: Overlong | None = None,
    token_advantages: TokenAdvantages | None = None,
    loss: LossMean = "token_mean",
    length: int = 0,
    pack: int | None = None,
    rows: int | None = None,
    pad_id: int = 0,
    multiple_of: int = 1,
    keep_masked: bool = False,
    prompts: bool = False,
    routed_experts: bool = False,
    images: bool = False,
    blobs: BlobStore | None = None,
    missing: Missing = "raise",
) -> Batch:
    """The share of one rank.

    Args:
        bodies: where its trajectories are read: a `BodyReader`.
        shard: rank and number of ranks.
        advantage: makes the advantages of each group; or all of them, by job.
        overlong: a penalty for length, before the advantages.
        token_advantages: asked for each rollout that was read: advantages of its own a token.
        loss: what the sum of token losses times `weights`, over all ranks, is to be (`LossWeights`). Where gradients are averaged over
            ranks, as DDP and FSDP do, multiply it by `world`.
        length: with `fixed_length`: tokens by which each trajectory is divided.
        pack: most tokens of a microbatch, for rows end to end. A longer row is one of its own, never cut.
        rows: most rows of a microbatch, for padded ones. One of both.
        pad_id: token id of padding.
        multiple_of: padded rows are as long as the longest, rounded up to this.
        keep_masked: whether rows without a loss token are kept.
        prompts: whether rollouts have their prompt's row (`data`).
        routed_experts: whether microbatches have `routed_experts` and `experts_mask`, read from `blobs`.
        images: whether the model sees images: their places are in `images` of microbatches and rows, their files are read from `blobs` when
            asked for.
        blobs: where workers keep both.
        missing: `raise`, or `skip` what cannot be had or must not be trained on, which is named in `batch.missing`.

    Raises:
        InvalidRequest: an argument does not fit, or a trajectory has images and nobody asked for them.
        BodyMissing: a trajectory is gone: its step was acked.
        DamagedBody, BadTrajectory: a trajectory cannot be read, breaks what the record promises, or has no routed experts.
        BlobError: those cannot be had.
    """
    check_reading(manifest, missing)
    bounded_int(pad_id, "pad_id", low=0, high=2**32 - 1)
    bounded_int(multiple_of, "multiple_of", low=1, high=2**20)
    rank, world = check_shard(shard)
    advantages = advantages_of(manifest, advantage, overlong)
    totals = manifest.totals
    weights = LossWeights(loss, totals, length)
    entries = manifest.entries
    shares = plan([_row_tokens(member, keep_masked=keep_masked) for _, member in entries], world, pack=pack, rows=rows)
    own = shares[rank]
    found = await read_rollouts(
        manifest,
        bodies,
        places=own.rollouts,
        advantages=advantages,
        prompts=prompts,
        routed_experts=routed_experts,
        images=images,
        blobs=blobs,
        missing=missing,
    )
    made: dict[tuple[int, int], Row] = {}
    lost = dict(found.missing)
    for place, rollout in found.rollouts.items():
        given = token_advantages(rollout) if token_advantages is not None else None
        try:
            its_rows = rows_of(rollout, advantage=given, weight=weights.of(entries[place][1].trained_tokens))
        except BadTrajectory as error:
            if missing == "raise":
                raise
            lost[rollout.job] = str(error)
            continue
        made |= {(place, row.number): row for row in its_rows}
        await asyncio.sleep(0)
    form = form_of(made.values()) if routed_experts else None
    batches = [tuple(made[at] for row in batch if (at := (row.rollout, row.segment)) in made) for batch in own.microbatches]
    return Batch(
        run=manifest.run,
        step=manifest.step,
        rank=rank,
        world=world,
        rollouts=tuple(rollout for rollout in found.rollouts.values() if rollout.job not in lost),
        step_loss_tokens=totals.loss_tokens,
        step_trajectories=totals.trajectories,
        agreement=_digest(manifest, advantage, overlong, loss, length, pack, rows, world, keep_masked),
        oversized=tuple(row for batch in own.microbatches for row in batch if pack is not None and row.tokens > pack),
        missing=lost,
        rows=tuple(batches),
        arrays=partial(packed, pad_id=pad_id, experts=form)
        if pack is not None
        else partial(padded, pad_id=pad_id, multiple_of=multiple_of, experts=form),
    )


def _digest(manifest: Manifest, advantage: Advantage | GivenAdvantages, *others: object) -> str:
    """Of what they say, not of where they are: an object without a description of its own counts by the name of its class."""
    said = sorted(advantage.items()) if isinstance(advantage, Mapping) else advantage
    words = [repr(word) if type(word).__repr__ is not object.__repr__ else type(word).__qualname__ for word in (said, *others)]
    return blake2b(manifest.to_bytes() + "\n".join(words).encode(), digest_size=8).hexdigest()


def _row_tokens(member: ManifestMember, *, keep_masked: bool) -> list[int]:
    """Tokens of each segment that gives a row, 0 for the others."""
    if not member.attempt or not (keep_masked or member.trained_tokens):
        return []
    return [tokens if keep_masked or loss else 0 for tokens, loss in zip(member.tokens, member.loss_tokens, strict=True)]


__all__ = ["Batch", "BatchHow", "Microbatch", "TokenAdvantages", "batch_of"]
