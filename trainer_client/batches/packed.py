"""Rows end to end in one line, for attention of variable length (FlashAttention's `varlen`, flex attention): no padding.

Legend for array shapes: T tokens of all rows, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeline.blobs import ExpertRows
from pipeline.messages import F32
from trainer_client.batches.experts import ExpertForm, laid_out
from trainer_client.batches.images import RowImage
from trainer_client.batches.planes import I64, Bool, planes
from trainer_client.batches.rows import I32, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """A microbatch of rows, end to end. Entry t of each array speaks of token t; nothing is shifted.

    The first token of a row follows from nothing: it is never a loss token, and the logits before it are another row's.
    """

    rows: tuple[Row, ...]
    """What they are made of, in order; empty in a microbatch that only keeps ranks in step (one padding token, without a loss)."""
    token_ids: I64
    """int64, shape [T]."""
    position_ids: I64
    """int64, shape [T]; from 0 on in every row."""
    row_ids: I32
    """int32, shape [T]; index of the row into `rows`."""
    cu_seqlens: I32
    """int32, shape [R + 1]; where each row begins, and the end of the last."""
    max_seqlen: int
    """Tokens of the longest row."""
    sampled_mask: Bool
    """bool, shape [T]; true on what the model wrote."""
    loss_mask: Bool
    """bool, shape [T]; true on what is trained."""
    behaviour_logprobs: F32
    """float32, shape [T], nats; of the policy that sampled, 0 where `sampled_mask` is false."""
    versions: I32
    """int32, shape [T]; policy version that sampled, -1 elsewhere."""
    temperatures: F32
    """float32, shape [T]; 1 where nothing was sampled."""
    advantages: F32
    """float32, shape [T]; 0 where `loss_mask` is false."""
    weights: F32
    """float32, shape [T]; the loss of the step is the sum of token losses times these over all ranks. 0 where `loss_mask` is false."""

    routed_experts: ExpertRows | None = None
    """uint8 or uint16, shape [T, layers, top_k]; experts that each token was routed to, 0 where `experts_mask` is false. None where nobody
    asked, and on a rank without a row."""
    experts_mask: Bool | None = None
    """bool, shape [T]; false on padding, the last token of a row, and an observation after its last turn."""

    @property
    def images(self) -> tuple[tuple[RowImage, ...], ...]:
        """Of each row what the model saw beside its tokens, in order; `start` and `end` count from the row's first token."""
        return tuple(row.images for row in self.rows)

    @property
    def n_tokens(self) -> int:
        """Tokens of rows."""
        return sum(row.n_tokens for row in self.rows)


def packed(rows: Sequence[Row], *, pad_id: int = 0, experts: ExpertForm | None = None) -> PackedRows:
    """One line of rows.

    Args:
        rows: none gives a single padding token that has no loss.
        pad_id: that token.
        experts: form of the rows' routed experts; None = those are left out.
    """
    lengths = [row.n_tokens for row in rows] or [1]
    cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    total = int(cu_seqlens[-1])
    made = planes((total,), pad_id)
    places = [(slice(int(start), int(end)),) for start, end in pairwise(cu_seqlens)][: len(rows)]
    for place, row in zip(places, rows, strict=True):
        made.put(place, row)
    routed_experts, experts_mask = laid_out(rows, places, (total,), experts)
    return PackedRows(
        rows=tuple(rows),
        token_ids=made.token_ids,
        position_ids=np.arange(total, dtype=np.int64) - np.repeat(cu_seqlens[:-1], lengths),
        row_ids=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        cu_seqlens=cu_seqlens,
        max_seqlen=max(lengths),
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


__all__ = ["PackedRows", "packed"]
