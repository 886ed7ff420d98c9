"""Routed experts of rollouts: read from the store of blobs when asked for, checked against their segments, laid beside the other arrays.

What stands where: entry t is the experts that token t was routed to. The last token of a row was sampled and never sent through the model,
and an observation after the last turn was read by no call: they have none. All of them stand behind the last sampled token, or are it; the
logits of every token that is trained follow from rows that are there.

Legend for array shapes: T tokens of a row, N of them with experts (N < T), L layers, K experts a token and layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.blobs import ROUTED_EXPERTS, BlobStore, ExpertRows
from pipeline.errors import InvalidRequest
from pipeline.messages import Segment
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, Row

FIELD = "routed_experts"


def needed_store(blobs: BlobStore | None, field: str) -> BlobStore:
    """The store.

    Args:
        field: what is asked for.

    Raises:
        InvalidRequest: none is set in this process.
    """
    if blobs is None:
        raise InvalidRequest(
            "expected a folder that this process shares with the workers: set ROLLSTREAM_BLOBS_DIR, or dir in [blobs] of rollstream.toml",
            field=field,
        )
    return blobs


async def with_experts(rollout: Rollout, blobs: BlobStore) -> Rollout:
    """The rollout with the experts of each segment in which something was sampled.

    Raises:
        BadTrajectory: it was sampled without them, or they are of other tokens.
        BlobError: they cannot be had, or are damaged.
    """
    return await asyncio.to_thread(_with_experts, rollout, blobs)


def _with_experts(rollout: Rollout, blobs: BlobStore) -> Rollout:
    segments = enumerate(rollout.trajectory.segments)
    return replace(rollout, experts=tuple(_experts(rollout.job, number, segment, blobs) for number, segment in segments))


def _experts(job: str, number: int, segment: Segment, blobs: BlobStore) -> ExpertRows | None:
    sampled = np.flatnonzero(segment.sampled_mask)
    if not len(sampled):
        return None
    blob = next((blob for blob in segment.blobs if blob.name == ROUTED_EXPERTS), None)
    if blob is None:
        raise BadTrajectory(
            job,
            f"segment {number} has no routed experts: its request did not ask for them (routed_experts), or its attempt was lost and "
            "settled from the journal, which has none",
        )
    tokens = len(segment.token_ids)
    if len(blob.shape) != 3 or blob.dtype not in ("uint8", "uint16") or not int(sampled[-1]) <= blob.shape[0] < tokens:
        raise BadTrajectory(job, f"segment {number} of {tokens} tokens names routed experts {blob.dtype} {list(blob.shape)}")
    return blobs.get(blob, job)


def experts_of(row: Row) -> ExpertRows:
    """The experts of all tokens of a row but the last: shape [T - 1, L, K], uint8, or uint16 for more than 256 experts a layer. Zeros
    where no call read a token, which is behind the last one that was sampled only.

    Raises:
        InvalidRequest: rollouts were read without them.
    """
    found = known_experts(row)
    missing = row.n_tokens - 1 - len(found)
    if not missing:
        return found
    whole: ExpertRows = np.zeros((row.n_tokens - 1, *found.shape[1:]), found.dtype)
    whole[: len(found)] = found
    return whole


def known_experts(row: Row) -> ExpertRows:
    """Those that are known: shape [N, L, K], of the first N tokens. As `experts_of`, and never a copy."""
    found = row.experts
    if found is None:
        raise InvalidRequest(f"{row.rollout.job} was read without routed experts: ask with routed_experts=True", field=FIELD)
    return found


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """What all rows of a batch have alike."""

    layers: int
    top_k: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} [N, {self.layers}, {self.top_k}]"


def form_of(rows: Iterable[Row]) -> ExpertForm | None:
    """The one form of the experts of rows; None without rows.

    Raises:
        BadTrajectory: one differs from those before it.
    """
    form: ExpertForm | None = None
    for row in rows:
        found = known_experts(row)
        its = ExpertForm(found.shape[1], found.shape[2], found.dtype.name)
        if form is not None and its != form:
            raise BadTrajectory(row.rollout.job, f"its routed experts are {its}, and those of others {form}: two models in one batch")
        form = its
    return form


def laid_out(
    rows: Sequence[Row], places: Sequence[tuple[int | slice, ...]], shape: tuple[int, ...], form: ExpertForm | None
) -> tuple[ExpertRows | None, NDArray[np.bool_] | None]:
    """Experts of rows beside their other arrays: zeros where there are none, and a mask of where there are.

    Args:
        places: index of each row's tokens.
        shape: of the other arrays.
        form: None = nobody asked for any, or the rank has no row that tells.
    """
    if form is None:
        return None, None
    experts: ExpertRows = np.zeros((*shape, form.layers, form.top_k), form.dtype)
    mask = np.zeros(shape, np.bool_)
    for row, place in zip(rows, places, strict=True):
        found = known_experts(row)
        experts[place][: len(found)] = found
        mask[place][: len(found)] = True
    return experts, mask


__all__ = ["ExpertForm", "experts_of", "form_of", "known_experts", "laid_out", "needed_store", "with_experts"]
