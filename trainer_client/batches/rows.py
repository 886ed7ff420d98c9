"""Rows: each segment of a rollout as arrays that speak of its tokens, all of one length.

Entry t of every array speaks of token t. A causal model's logits at t - 1 are what token t was sampled from; nothing is shifted here.

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.blobs import ExpertRows
from pipeline.messages import F32, U8, U32, Segment, Trajectory
from trainer_client.batches.bad_trajectory import BadTrajectory
from trainer_client.batches.images import RowImage, check_images, images_in
from trainer_client.batches.rollout import Rollout

I32 = NDArray[np.int32]
MAX_LOGPROB = 1e-3
"""A logprob is at most 0; engines round."""
NO_VERSION = -1
"""On tokens that nobody sampled, or that a version without a number did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One segment of a rollout. Arrays that are not the segment's own are made when asked for, or filled into given ones (`fill_*`)."""

    rollout: Rollout
    number: int
    """Of the segment in its trajectory."""
    segment: Segment
    stretches: tuple[tuple[int, int], ...]
    """Where `sampled_mask` is 1: first token and one past the last of each stretch, in order."""
    advantage: float | F32 = 0.0
    """Of the whole trajectory, or float32, shape [T]."""
    weight: float = 0.0
    """Of each of its loss tokens (`LossWeights`)."""

    @property
    def n_tokens(self) -> int:
        return len(self.segment.token_ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first sampled one: where targets split into prompt and response."""
        return self.stretches[0][0]

    @property
    def token_ids(self) -> U32:
        """uint32, shape [T]."""
        return self.segment.token_ids

    @property
    def sampled_mask(self) -> U8:
        """uint8, shape [T]; 1 on what the model wrote in this segment."""
        return self.segment.sampled_mask

    @property
    def loss_mask(self) -> U8:
        """uint8, shape [T]; 1 on what is trained."""
        return self.segment.loss_mask

    @property
    def experts(self) -> ExpertRows | None:
        """uint8 or uint16, shape [N, layers, top_k]: experts of the first N tokens, N below T; None where rollouts were read without. The
        last token never has any; `experts_of` gives T - 1 rows."""
        return self.rollout.experts[self.number] if self.rollout.experts else None

    @property
    def images(self) -> tuple[RowImage, ...]:
        """What the model saw beside the tokens, in order; their files are read when asked for."""
        return images_in(self.rollout, self.segment) if self.segment.images else ()

    @property
    def logprobs(self) -> F32:
        """float32, shape [T], nats; of the policy that sampled, 0 where `sampled_mask` is 0."""
        found = np.zeros(self.n_tokens, np.float32)
        self.fill_logprobs(found)
        return found

    @property
    def versions(self) -> I32:
        """int32, shape [T]; number of the policy version within its incarnation, `NO_VERSION` where there is none."""
        found = np.full(self.n_tokens, NO_VERSION, np.int32)
        self.fill_versions(found)
        return found

    @property
    def temperatures(self) -> F32:
        """float32, shape [T]; what each token was sampled with, 1 where none was."""
        found = np.ones(self.n_tokens, np.float32)
        self.fill_temperatures(found)
        return found

    @property
    def advantages(self) -> F32:
        """float32, shape [T]; 0 where `loss_mask` is 0."""
        found = np.zeros(self.n_tokens, np.float32)
        self.fill_advantages(found)
        return found

    def fill_logprobs(self, out_T: F32) -> None:
        """Into zeros."""
        for start, end in self.stretches:
            out_T[start:end] = self.segment.logprobs[start:end]

    def fill_versions(self, out_T: I32) -> None:
        """Into an array of `NO_VERSION`."""
        for span in self.segment.versions:
            number = version_number(span.version)
            for start, end in self.stretches:
                out_T[max(start, span.start) : min(end, span.end)] = number

    def fill_temperatures(self, out_T: F32) -> None:
        """Into ones."""
        for turn in self.rollout.trajectory.turns:
            if turn.segment == self.number and turn.sampling.temperature != 1.0:
                out_T[turn.start : turn.end] = turn.sampling.temperature

    def fill_advantages(self, out_T: F32) -> None:
        """Into zeros."""
        whole = self.advantage if isinstance(self.advantage, float) else None
        for start, end in self.stretches:
            advantage = self.advantage[start:end] if whole is None else np.float32(whole)  # type: ignore[index]  # no float: an array
            np.multiply(self.segment.loss_mask[start:end], advantage, out=out_T[start:end])

    def fill_weights(self, out_T: F32) -> None:
        """Into zeros: `weight` on each loss token."""
        for start, end in self.stretches:
            np.multiply(self.segment.loss_mask[start:end], np.float32(self.weight), out=out_T[start:end])


def rows_of(rollout: Rollout, *, advantage: float | Sequence[F32] | None = None, weight: float = 0.0) -> list[Row]:
    """The rows of one rollout, in the order of its segments. One without a sampled token gives none: nothing is made up for it.

    Args:
        rollout: whose trajectory.
        advantage: of the whole trajectory; or float32 arrays, shape [T], one a segment; None = the rollout's own, 0 if it has none.
        weight: of each loss token.

    Raises:
        BadTrajectory: a sampled token has a logprob that is no logarithm of a probability, a token that nobody sampled has a loss, masks
            are other than 0 and 1, arrays differ in length, or an image stands where none can.
    """
    segments = rollout.trajectory.segments
    if advantage is None:
        advantage = rollout.advantage or 0.0
    if not isinstance(advantage, int | float) and len(advantage) != len(segments):
        raise BadTrajectory(rollout.job, f"{len(advantage)} arrays of advantages for {len(segments)} segments")
    rows = []
    for number, segment in enumerate(segments):
        _check(rollout.job, number, segment)
        if stretches := _stretches(segment.sampled_mask):
            rows.append(
                Row(
                    rollout=rollout,
                    number=number,
                    segment=segment,
                    stretches=stretches,
                    advantage=_advantage(rollout.job, advantage, number, segment),
                    weight=weight,
                )
            )
    return rows


def all_rows(rollouts: Sequence[Rollout]) -> Iterator[Row]:
    """The rows of many rollouts, each with its own advantage: rows of one trajectory stand together."""
    for rollout in rollouts:
        yield from rows_of(rollout)


def turn_ends(rollout: Rollout, segment: int) -> list[tuple[int, int]]:
    """Of each turn of a segment: its number, and the index of the last token that it sampled."""
    return [(turn.index, turn.end - 1) for turn in rollout.trajectory.turns if turn.segment == segment and turn.end > turn.start]


def version_number(label: str) -> int:
    """The number in `<incarnation>.<number>`; `NO_VERSION` for a server's own word."""
    number = label.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else NO_VERSION


def check_turns(job: str, trajectory: Trajectory) -> None:
    """A turn that stands elsewhere would put its temperature, and rewards a turn, on tokens that it did not sample.

    Raises:
        BadTrajectory: one is not in its segment, or has no temperature.
    """
    lengths = [len(segment.token_ids) for segment in trajectory.segments]
    for turn in trajectory.turns:
        length = lengths[turn.segment] if 0 <= turn.segment < len(lengths) else -1
        if not 0 <= turn.start <= turn.end <= length:
            raise BadTrajectory(
                job, f"turn {turn.index} is tokens {turn.start} to {turn.end} of segment {turn.segment}, which are not there"
            )
        if not 0.0 <= turn.sampling.temperature < math.inf:
            raise BadTrajectory(job, f"turn {turn.index} was sampled at a temperature of {turn.sampling.temperature}")


def _check(job: str, number: int, segment: Segment) -> None:
    tokens = len(segment.token_ids)
    if not len(segment.sampled_mask) == len(segment.loss_mask) == len(segment.logprobs) == tokens:
        raise BadTrajectory(job, f"arrays of segment {number} differ in length")
    if tokens and segment.sampled_mask.max() > 1:
        raise BadTrajectory(job, f"segment {number} has a mask with values other than 0 and 1")
    if len(segment.versions) > tokens:
        raise BadTrajectory(job, f"segment {number} has {len(segment.versions):,} stretches of versions for {tokens:,} tokens")
    if (segment.loss_mask > segment.sampled_mask).any():
        raise BadTrajectory(job, f"segment {number} has a loss on tokens that the model did not write")
    sampled = segment.logprobs[segment.sampled_mask.view(np.bool_)]
    # a comparison with NaN is false, and so both are refused
    if len(sampled) and not (sampled.max() <= MAX_LOGPROB and sampled.min() > -np.inf):
        bad = np.flatnonzero(~((sampled <= MAX_LOGPROB) & (sampled > -np.inf)))[0]
        at = int(np.flatnonzero(segment.sampled_mask)[bad])
        raise BadTrajectory(job, f"token {at} of segment {number} was sampled with a logprob of {float(sampled[bad])}")
    if segment.images:
        check_images(job, number, segment)


def _stretches(mask_T: U8) -> tuple[tuple[int, int], ...]:
    """Where a mask is 1."""
    edges = np.flatnonzero(mask_T[1:] != mask_T[:-1]) + 1
    bounds = [0, *edges.tolist(), len(mask_T)]
    first = 0 if len(mask_T) and mask_T[0] else 1
    return tuple(zip(bounds[first:-1:2], bounds[first + 1 :: 2], strict=True))


def _advantage(job: str, advantage: float | Sequence[F32], number: int, segment: Segment) -> float | F32:
    if isinstance(advantage, int | float):
        return float(advantage)
    found = np.ascontiguousarray(advantage[number], np.float32)
    if found.shape != segment.token_ids.shape:
        raise BadTrajectory(job, f"advantages of shape {found.shape} for the {len(segment.token_ids)} tokens of segment {number}")
    return found


__all__ = ["NO_VERSION", "BadTrajectory", "Row", "all_rows", "check_turns", "rows_of", "turn_ends", "version_number"]
