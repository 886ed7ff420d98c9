"""A trajectory cut into what is shown of it: stretches of tokens that one side said, and in them pieces of text.

A piece is the fewest tokens that make whole characters: bytes of one character may be spread over several. Without a tokenizer that fits
the record a piece is one token, by its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pipeline.messages import Segment, Trajectory, Turn
from workers.llm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some tokens and their text."""

    start: int
    """Index into the segment."""
    ids: tuple[int, ...]
    text: str | None
    """None: the ids have none that is known."""
    logprobs: tuple[float, ...]
    """One a token; NaN where nothing was sampled."""

    @property
    def lowest(self) -> float:
        """The logprob of its least probable token; NaN where nothing was sampled."""
        return min(self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Tokens in a row that were sampled, or that were not, of one fate in the loss."""

    sampled: bool
    trained: bool
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A turn with what came before it, or what came after the last one."""

    segment: int
    turn: Turn | None
    """None: nothing was sampled after it."""
    begins_segment: bool
    shared: int
    """Tokens before it that an earlier part showed: what its segment shares with another."""
    stretches: tuple[Stretch, ...]


def parts_of(trajectory: Trajectory, tokenizer: Tokenizer | None) -> Iterator[Part]:
    """The whole trajectory, in order. Its arrays must be whole; turns that stand nowhere are left out."""
    for index, segment in enumerate(trajectory.segments):
        n_tokens = len(segment.token_ids)
        turns = [turn for turn in trajectory.turns if turn.segment == index and 0 <= turn.start <= turn.end <= n_tokens]
        at = shared = max(0, min(segment.fork, n_tokens)) if segment.parent >= 0 else 0
        begins = True
        for turn in sorted(turns, key=lambda turn: turn.start):
            yield _part(index, segment, turn, at, turn.end, tokenizer, begins=begins, shared=shared)
            at, begins = max(at, turn.end), False
        if at < n_tokens or begins:
            yield _part(index, segment, None, at, n_tokens, tokenizer, begins=begins, shared=shared)


def fitting(trajectory: Trajectory, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """The tokenizer, if the record was made with it."""
    fits = tokenizer is not None and all(turn.tokenizer == tokenizer.fingerprint for turn in trajectory.turns)
    return tokenizer if fits else None


def _part(
    index: int, segment: Segment, turn: Turn | None, start: int, end: int, tokenizer: Tokenizer | None, *, begins: bool, shared: int
) -> Part:
    stretches = []
    kinds = zip(segment.sampled_mask[start:end].tolist(), segment.loss_mask[start:end].tolist(), strict=True)
    at = start
    for (sampled, loss), run in groupby(kinds):
        length = sum(1 for _ in run)
        pieces = tuple(_pieces(segment, at, at + length, tokenizer))
        stretches.append(Stretch(sampled=bool(sampled), trained=bool(loss), pieces=pieces))
        at += length
    return Part(segment=index, turn=turn, begins_segment=begins, shared=shared if begins else 0, stretches=tuple(stretches))


def _pieces(segment: Segment, start: int, end: int, tokenizer: Tokenizer | None) -> Iterator[Piece]:
    ids = segment.token_ids[start:end].tolist()
    logprobs = segment.logprobs[start:end].tolist()
    for first, last, text in _texts(ids, tokenizer):
        yield Piece(start=start + first, ids=tuple(ids[first:last]), text=text, logprobs=tuple(logprobs[first:last]))


def _texts(ids: Sequence[int], tokenizer: Tokenizer | None) -> Iterator[tuple[int, int, str | None]]:
    """First and last token of each piece, and its text."""
    if tokenizer is None or (len(ids) and int(np.max(ids)) >= tokenizer.vocab_size):
        yield from ((place, place + 1, None) for place in range(len(ids)))
        return
    stream, first = tokenizer.stream(), 0
    for place, id_ in enumerate(ids):
        text = stream.push(id_)
        if text:
            yield first, place + 1, text
            first = place + 1
    if first < len(ids):
        yield first, len(ids), stream.finish()
