"""Promises 5 and 6, proved on any record of a trajectory: what leaves RUN and EVAL is looked at before it is believed, and so is what
`rollstream trajectory check` is given.

What a record without faults says:
  1. In each segment the four arrays have one length, and their types.
  2. `sampled_mask` is 1 exactly on the tokens of the turns; each of them has a finite logprob, no other token has one. `loss_mask` is at
     most `sampled_mask`.
  3. The turns are the model calls in order. Each one's prompt is all of its segment before it: the turn's checksum, made from the
     answer of the server, is that of the ids and logprobs which the record has (`turn_checksum.py`; records from before it have none).
  4. A segment other than the first says why it began. It shares exactly `fork` tokens with its parent before anything was sampled in it.
  5. Routed experts, where a segment names them, are those of its tokens up to its last sampled one or further, and never of its last token.
  6. Images stand in order, none on another and none on a sampled token; the record says what each is.
  7. Version spans are in order and cover exactly the sampled tokens.

numpy is all this needs. Logprobs are compared with a server's elsewhere (`workers/llm/teacher_forcing.py`).

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.blobs import IMAGE, ROUTED_EXPERTS
from pipeline.messages import F32, U32, Sampling, Segment, Trajectory, Turn
from workers.agent.turn_checksum import add_ids, turn_checksum
from workers.llm.validate import HIGHEST_LOGPROB, LABEL, LOWEST_LOGPROB

DTYPES = {"token_ids": "uint32", "sampled_mask": "uint8", "loss_mask": "uint8", "logprobs": "float32"}
FINISHES = ("stop", "length", "abort")
MODES = ("raw", "scaled", "processed")
LONGEST_TOLD = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which a record breaks its promises."""

    what: str
    """In a few words, the same for all faults of a kind."""
    expected: str
    found: str
    segment: int = -1
    """-1 = of no segment."""
    place: int = -1
    """First token concerned, as an index into the segment; -1 = of no token."""
    turn: int = -1
    """-1 = of no turn."""
    more: int = 0
    """Further tokens of the segment with the same fault."""

    def __str__(self) -> str:
        named = (("segment", self.segment), ("turn", self.turn), ("token", self.place))
        where = ", ".join(f"{name} {number}" for name, number in named if number >= 0)
        also = f" (and {self.more} more)" if self.more else ""
        return f"{where + ': ' if where else ''}{self.what}: expected {self.expected}, found {self.found}{also}"


def faults_of(trajectory: Trajectory) -> list[Fault]:
    """All that is wrong with a record; empty when nothing is."""
    faults: list[Fault] = []
    for index, segment in enumerate(trajectory.segments):
        found = list(_array_faults(index, segment))
        if not found:
            found += _token_faults(index, segment)
            found += _version_faults(index, segment)
            found += _experts_faults(index, segment)
            found += _image_faults(index, segment)
        faults += found
    if any(fault.what == BAD_ARRAYS for fault in faults):
        return faults
    for index in range(len(trajectory.segments)):
        faults += _beginning_faults(trajectory, index)
    return [*faults, *_turn_faults(trajectory)]


def broken_promises(trajectory: Trajectory) -> list[str]:
    """What is wrong with a trajectory, in words; empty when nothing is."""
    return [str(fault) for fault in faults_of(trajectory)]


def _cut(text: str) -> str:
    """A record's own word as it is told: hostile ones are long."""
    return repr(text) if len(text) <= LONGEST_TOLD else f"{text[:LONGEST_TOLD]!r} and {len(text) - LONGEST_TOLD:,} more"


def common_prefix(a: U32, b: U32) -> int:
    """How many ids two sequences share at their beginning."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(np.argmax(differs)) if differs.any() else n


# ---- one segment

BAD_ARRAYS = "arrays that are no columns of one table"


def _array_faults(index: int, segment: Segment) -> Iterator[Fault]:
    arrays = {name: getattr(segment, name) for name in DTYPES}
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype != DTYPES[name]:
            yield Fault(
                what=BAD_ARRAYS, segment=index, expected=f"{name} as {DTYPES[name]} [T]", found=f"{array.dtype} {list(array.shape)}"
            )
            return
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        yield Fault(what=BAD_ARRAYS, segment=index, expected="one length", found=found)


def _token_faults(index: int, segment: Segment) -> Iterator[Fault]:
    """Each kind of fault at its first token."""
    sampled = segment.sampled_mask == 1
    logprobs = segment.logprobs
    believable = (logprobs >= LOWEST_LOGPROB) & (logprobs <= HIGHEST_LOGPROB)  # False for NaN; rounding to f32 reaches the bounds
    kinds: tuple[tuple[str, str, NDArray[np.bool_], NDArray[np.generic]], ...] = (
        ("a mask that is none", "sampled_mask of 0 or 1", segment.sampled_mask > 1, segment.sampled_mask),
        ("a mask that is none", "loss_mask of 0 or 1", segment.loss_mask > 1, segment.loss_mask),
        ("loss on a token that was not sampled", "loss_mask of 0", segment.loss_mask > segment.sampled_mask, segment.loss_mask),
        ("a sampled token without a logprob", "a finite logprob of at most 0", sampled & ~believable, logprobs),
        ("a logprob on a token that was not sampled", "NaN", ~sampled & ~np.isnan(logprobs), logprobs),
    )
    for what, expected, wrong, values in kinds:
        if wrong.any():
            yield _at_first(what, expected, index, wrong, values)


def _at_first(what: str, expected: str, segment: int, wrong: NDArray[np.bool_], values: NDArray[np.generic]) -> Fault:
    place = int(np.argmax(wrong))
    value = values[place].item()
    found = f"{value:.6g}" if isinstance(value, float) else str(value)
    return Fault(what=what, expected=expected, found=found, segment=segment, place=place, more=int(wrong.sum()) - 1)


def _version_faults(index: int, segment: Segment) -> Iterator[Fault]:
    n_tokens = len(segment.token_ids)
    covered = np.zeros(n_tokens, dtype=np.uint8)
    last = 0
    for span in segment.versions:
        if not LABEL.fullmatch(span.version):
            yield Fault(
                what="a version without a label", segment=index, place=span.start, expected="a printable label", found=_cut(span.version)
            )
        if not last <= span.start < span.end <= n_tokens:
            yield Fault(
                what="version spans out of order",
                segment=index,
                place=span.start,
                expected=f"a stretch from {last} on, within {n_tokens} tokens",
                found=f"{span.start} to {span.end}",
            )
            return
        covered[span.start : span.end] = 1
        last = span.end
    sampled = (segment.sampled_mask == 1).astype(np.uint8)
    if (wrong := covered != sampled).any():
        place = int(np.argmax(wrong))
        expected, found = ("a version", "none") if sampled[place] else ("none, it was not sampled", "a version")
        what = "version spans that do not cover exactly what was sampled"
        yield Fault(what=what, segment=index, place=place, expected=expected, found=found, more=int(wrong.sum()) - 1)


def _experts_faults(index: int, segment: Segment) -> Iterator[Fault]:
    """By what the record says of them; their bytes are looked at by who reads them."""
    names = [blob.name for blob in segment.blobs]
    if len(set(names)) < len(names):
        yield Fault(what="blobs of one name", segment=index, expected="each once", found=_cut(", ".join(names)))
        return
    for blob in segment.blobs:
        if blob.name != ROUTED_EXPERTS:
            continue
        needed, most = int(np.flatnonzero(segment.sampled_mask).max(initial=0)), max(0, len(segment.token_ids) - 1)
        if len(blob.shape) != 3 or blob.dtype not in ("uint8", "uint16") or not needed <= blob.shape[0] <= most:
            expected, found = f"uint8 or uint16 [{needed} to {most}, layers, top_k]", _cut(f"{blob.dtype} {list(blob.shape)}")
            yield Fault(what="routed experts of other tokens", segment=index, expected=expected, found=found)


def _image_faults(index: int, segment: Segment) -> Iterator[Fault]:
    """By what the record says of them; their bytes are looked at by who reads them."""
    last, tokens = 0, len(segment.token_ids)
    for image in segment.images:
        if not last <= image.start < image.end <= tokens:
            yield Fault(
                what="images out of order",
                segment=index,
                place=image.start,
                expected=f"a stretch from {last} on, within {tokens} tokens",
                found=f"{image.start} to {image.end}",
            )
            return
        if segment.sampled_mask[image.start : image.end].any():
            yield Fault(what="an image on sampled tokens", segment=index, place=image.start, expected="context", found="sampled tokens")
        last, blob = image.end, image.blob
        if blob.name != IMAGE or blob.dtype != "uint8" or blob.shape != (blob.n_bytes,):
            found = _cut(f"{blob.name} {blob.dtype} {list(blob.shape)}")
            yield Fault(what="an image that is none", segment=index, place=image.start, expected="image uint8 [n_bytes]", found=found)


# ---- how segments hang together


def _beginning_faults(trajectory: Trajectory, index: int) -> Iterator[Fault]:
    segment = trajectory.segments[index]
    if index == 0:
        if (segment.began, segment.parent, segment.fork) != ("start", -1, 0):
            found = f"began {_cut(segment.began)}, parent {segment.parent}, fork {segment.fork}"
            yield Fault(what="a first segment that is not the start", segment=0, expected="began 'start', parent -1, fork 0", found=found)
        return
    if not segment.began or (segment.parent >= 0 and segment.began == "start"):
        yield Fault(what="a segment that does not say why it began", segment=index, expected="a reason", found=_cut(segment.began))
    if not -1 <= segment.parent < index:
        yield Fault(what="a parent that does not come before", segment=index, expected=f"-1 to {index - 1}", found=str(segment.parent))
        return
    shared = 0
    if segment.parent >= 0:
        sampled = segment.sampled_mask == 1
        n_before = int(np.argmax(sampled)) if sampled.any() else len(sampled)
        shared = min(n_before, common_prefix(trajectory.segments[segment.parent].token_ids, segment.token_ids))
    if segment.fork != shared:
        what = f"a fork that is not what it shares with segment {segment.parent}" if segment.parent >= 0 else "a fork without a parent"
        yield Fault(what=what, segment=index, place=min(shared, segment.fork), expected=str(shared), found=str(segment.fork))


# ---- the model calls


def _turn_faults(trajectory: Trajectory) -> Iterator[Fault]:
    claims_S_T = [np.zeros(len(segment.token_ids), dtype=np.uint8) for segment in trajectory.segments]
    checksums = _Checksums(trajectory)
    last = (0, 0)
    for number, turn in enumerate(trajectory.turns):
        segments = trajectory.segments
        length = len(segments[turn.segment].token_ids) if 0 <= turn.segment < len(segments) else 0
        if not 1 <= turn.start <= turn.end <= length:
            yield Fault(
                what="a turn that stands nowhere",
                turn=number,
                segment=turn.segment,
                place=turn.start,
                expected=f"a stretch behind a prompt, in {len(segments)} segments, within {length} tokens",
                found=f"{turn.start} to {turn.end}",
            )
            continue
        is_behind = (turn.segment, turn.start) < last
        if is_behind or turn.index != number:
            found = f"index {turn.index}, from {turn.start} of segment {turn.segment}"
            expected = f"index {number}, from {last[1]} of segment {last[0]} on"
            yield Fault(what="turns out of order", turn=number, segment=turn.segment, place=turn.start, expected=expected, found=found)
        if is_behind:
            continue  # tokens are looked at once: a record of many turns over the same ones would take hours
        last = (turn.segment, turn.end)
        claims_S_T[turn.segment][turn.start : turn.end] = 1
        yield from _call_faults(number, turn)
        yield from checksums.faults(number, turn)
    for index, (segment, claims) in enumerate(zip(trajectory.segments, claims_S_T, strict=True)):
        wrong = claims != segment.sampled_mask
        if wrong.any():
            place = int(np.argmax(wrong))
            expected = "a token of a turn" if segment.sampled_mask[place] else "a token of no turn"
            found = "one of a turn" if claims[place] else "one of no turn"
            what = "turns that are not exactly what was sampled"
            yield Fault(what=what, segment=index, place=place, expected=expected, found=found, more=int(wrong.sum()) - 1)


def _call_faults(number: int, turn: Turn) -> Iterator[Fault]:
    if turn.finish not in FINISHES:
        yield Fault(what="an unknown finish", turn=number, expected=", ".join(FINISHES), found=_cut(turn.finish))
    if turn.logprobs_mode not in MODES:
        yield Fault(what="an unknown logprobs mode", turn=number, expected=" or ".join(MODES), found=_cut(turn.logprobs_mode))
    if turn.end - turn.start > turn.sampling.max_tokens:
        found = f"{turn.end - turn.start} tokens"
        yield Fault(
            what="a turn above its budget",
            turn=number,
            segment=turn.segment,
            place=turn.start,
            expected=f"at most {turn.sampling.max_tokens}",
            found=found,
        )
    if wrong := _impossible(turn.sampling):
        yield Fault(what="impossible sampling", turn=number, expected="parameters in their ranges", found=wrong)


def _impossible(sampling: Sampling) -> str:
    ranges = {
        "temperature": (0.0, math.inf),
        "top_p": (0.0, 1.0),
        "top_k": (0, math.inf),
        "min_p": (0.0, 1.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "repetition_penalty": (0.0, math.inf),
    }
    values = {name: getattr(sampling, name) for name in ranges}
    wrong = [f"{name} {value}" for name, value in values.items() if not (ranges[name][0] <= value <= ranges[name][1] and value < math.inf)]
    return ", ".join(wrong)


class _Checksums:
    """Running checksums of the ids of each segment, each id taken once."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._done: dict[int, tuple[int, int]] = {}
        """By segment: tokens taken, and their checksum."""

    def faults(self, number: int, turn: Turn) -> Iterator[Fault]:
        """Whether a turn, not before the last one asked for, has the checksum of what the record has."""
        if turn.checksum < 0:
            return
        segment = self._trajectory.segments[turn.segment]
        at, checksum = self._done.get(turn.segment, (0, 0))
        if turn.end < at:
            at, checksum = 0, 0
        checksum = add_ids(checksum, segment.token_ids[at : turn.end])
        self._done[turn.segment] = (turn.end, checksum)
        logprobs: F32 = segment.logprobs[turn.start : turn.end]
        if (found := turn_checksum(checksum, logprobs)) != turn.checksum:
            yield Fault(
                what="ids or logprobs other than were sent and sampled",
                turn=number,
                segment=turn.segment,
                place=turn.start,
                expected=f"checksum {turn.checksum:08x} over the prompt and this turn",
                found=f"{found:08x}",
            )
