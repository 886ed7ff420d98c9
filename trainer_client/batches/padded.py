"""Rows as one rectangle: each padded on the right to the longest.

Legend for array shapes: R rows, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.blobs import ExpertRows
from pipeline.messages import F32
from trainer_client.batches.experts import ExpertForm, laid_out
from trainer_client.batches.images import RowImage
from trainer_client.batches.planes import I64, Bool, planes
from trainer_client.batches.rows import I32, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRows:
    """A microbatch of rows, padded on the right. Entry [r, t] of each array speaks of token t of row r; nothing is shifted."""

    rows: tuple[Row, ...]
    """What they are made of, in order; empty in a microbatch that only keeps ranks in step (one padding token, without a loss)."""
    token_ids: I64
    """int64, shape [R, T]; `pad_id` after the end."""
    attention_mask: Bool
    """bool, shape [R, T]; true on tokens of the row."""
    position_ids: I64
    """int64, shape [R, T]; 0, 1, 2, ... in every row: a read-only view of one."""
    sampled_mask: Bool
    """bool, shape [R, T]; true on what the model wrote."""
    loss_mask: Bool
    """bool, shape [R, T]; true on what is trained."""
    behaviour_logprobs: F32
    """float32, shape [R, T], nats; of the policy that sampled, 0 where `sampled_mask` is false."""
    versions: I32
    """int32, shape [R, T]; policy version that sampled, -1 elsewhere."""
    temperatures: F32
    """float32, shape [R, T]; 1 where nothing was sampled."""
    advantages: F32
    """float32, shape [R, T]; 0 where `loss_mask` is false."""
    weights: F32
    """float32, shape [R, T]; the loss of the step is the sum of token losses times these over all ranks. 0 where `loss_mask` is false."""

    routed_experts: ExpertRows | None = None
    """uint8 or uint16, shape [R, T, layers, top_k]; experts that each token was routed to, 0 where `experts_mask` is false. None where
    nobody asked, and on a rank without a row."""
    experts_mask: Bool | None = None
    """bool, shape [R, T]; false on padding, the last token of a row, and an observation after its last turn."""

    @property
    def images(self) -> tuple[tuple[RowImage, ...], ...]:
        """Of each row what the model saw beside its tokens, in order; `start` and `end` count from the row's first token."""
        return tuple(row.images for row in self.rows)

    @property
    def n_tokens(self) -> int:
        """Tokens of rows, padding left out."""
        return sum(row.n_tokens for row in self.rows)


def padded(rows: Sequence[Row], *, pad_id: int = 0, multiple_of: int = 1, experts: ExpertForm | None = None) -> PaddedRows:
    """One rectangle of rows.

    Args:
        rows: none gives one row of a single padding token that has no loss.
        pad_id: token that stands after the end of a row.
        multiple_of: T is rounded up to it.
        experts: form of the rows' routed experts; None = those are left out.
    """
    n_rows = max(1, len(rows))
    longest = max((row.n_tokens for row in rows), default=1)
    shape = (n_rows, -(-longest // multiple_of) * multiple_of)
    made = planes(shape, pad_id)
    places = [(r, slice(row.n_tokens)) for r, row in enumerate(rows)]
    for place, row in zip(places, rows, strict=True):
        made.put(place, row)
    routed_experts, experts_mask = laid_out(rows, places, shape, experts)
    if not rows:
        made.attention_mask[0, 0] = True  # a row that attends to nothing is NaN in many models
    return PaddedRows(
        rows=tuple(rows),
        token_ids=made.token_ids,
        attention_mask=made.attention_mask,
        position_ids=np.broadcast_to(np.arange(shape[1], dtype=np.int64), shape),
        sampled_mask=made.sampled_mask,
        loss_mask=made.loss_mask,
        behaviour_logprobs=made.behaviour_logprobs,
        versions=made.versions,
        temperatures=made.temperatures,
        advantages=made.advantages,
        weights=made.weights,
        routed_experts=routed_experts,
        experts_mask=experts_mask,
    )


__all__ = ["PaddedRows", "padded"]
