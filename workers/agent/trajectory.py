"""The record of one trajectory, append-only.

Invariants (promises 5 and 6 of the design):
  1. Ids and logprobs are stored as they came. Nothing that was recorded is changed or taken back.
  2. In each segment ids, sampled mask, loss mask and logprobs have one length.
  3. `sampled_mask` is 1 exactly on what was sampled in the segment; logprobs are finite exactly there, NaN elsewhere.
  4. Version spans cover exactly the sampled tokens, in order.
  5. A prompt that begins with all that is recorded extends the segment; any other begins a new one, which says why and what it shares.
  6. The deltas handed to the journal, put together again, are the trajectory.
  7. Experts, where they are asked for, are kept from the call that computed them first: those of all tokens of a segment up to the last but
     one of its last call (ADR 26). The journal has none.
  8. Each image of a prompt is named by its segment and by the journal, with the tokens that stand for it (ADR 31).
  9. Each turn carries the checksum of what it was given and what it sampled (`turn_checksum.py`), made when the answer came.

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.blobs import ExpertRows
from pipeline.messages import F32, U8, U32, Blob, ChatMessage, Json, Segment, SegmentImage, StopReason, Trajectory, Turn, VersionSpan
from workers.agent.call_formats.values import without_surrogates
from workers.agent.renderers.base import first_difference
from workers.agent.turn_checksum import add_ids, turn_checksum
from workers.llm.backend import GenResult
from workers.llm.images import PlacedImage

_NO_LOGPROB = array("f", [float("nan")])
PROMPT_DIVERGED = "prompt_diverged"
"""A renderer's prompt did not begin with what was recorded, and it did not say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDelta:
    """What was appended to one segment."""

    segment: int
    at: int
    """Length of the segment before."""
    token_ids: U32
    sampled_mask: U8
    loss_mask: U8
    logprobs: F32
    versions: tuple[VersionSpan, ...]
    """All spans of the segment that begin or grew in this delta."""
    began: str = "start"
    parent: int = -1
    fork: int = 0
    images: tuple[SegmentImage, ...] = ()
    """Those that stand in what was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDelta:
    """What one turn added to a trajectory: the unit of the journal."""

    index: int
    """How many deltas came before."""
    segments: tuple[SegmentDelta, ...]
    turns: tuple[Turn, ...]
    messages: tuple[ChatMessage, ...]


class _OpenSegment:
    """A segment that grows."""

    def __init__(self, began: str, parent: int, fork: int) -> None:
        self.began, self.parent, self.fork = began, parent, fork
        self.ids: list[int] = []
        self.sampled = bytearray()
        self.loss = bytearray()
        self.logprobs = array("f")
        self.versions: list[VersionSpan] = []
        self.turns: list[tuple[int, int]] = []
        self.ids_checksum = 0
        self.experts: list[ExpertRows] = []
        self.expert_rows = 0
        self.images: list[SegmentImage] = []
        self.journalled = 0

    def add_context(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.ids_checksum = add_ids(self.ids_checksum, ids)
        self.sampled.extend(bytes(len(ids)))
        self.loss.extend(bytes(len(ids)))
        self.logprobs.extend(_NO_LOGPROB * len(ids))

    def add_images(self, images: Sequence[PlacedImage]) -> None:
        """Those that are not here yet, of all that a prompt of this segment shows."""
        self.images += [_record_of(placed) for placed in images[len(self.images) :]]

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float], *, train: bool) -> None:
        self.ids.extend(ids)
        self.ids_checksum = add_ids(self.ids_checksum, ids)
        self.sampled.extend(b"\x01" * len(ids))
        self.loss.extend((b"\x01" if train else b"\x00") * len(ids))
        self.logprobs.extend(logprobs)

    def add_experts(self, rows: ExpertRows) -> None:
        """Those that are not here yet, of some that end at the last token but one."""
        new = len(self.ids) - 1 - self.expert_rows
        if len(rows) < new:
            raise ValueError(f"experts of the last {len(rows)} tokens but one leave a gap: those of {self.expert_rows} are here")
        if new > 0:
            self.experts.append(rows[len(rows) - new :])
            self.expert_rows += new

    def add_version(self, span: VersionSpan) -> None:
        last = self.versions[-1] if self.versions else None
        if last is not None and last.version == span.version and last.end == span.start:
            self.versions[-1] = replace(last, end=span.end)
        elif span.end > span.start:
            self.versions.append(span)

    def freeze(self, blobs: Sequence[Blob] = ()) -> Segment:
        return Segment(
            token_ids=np.array(self.ids, dtype="<u4"),
            sampled_mask=np.frombuffer(bytes(self.sampled), dtype=np.uint8),
            loss_mask=np.frombuffer(bytes(self.loss), dtype=np.uint8),
            logprobs=np.array(self.logprobs, dtype="<f4"),
            versions=tuple(self.versions),
            began=self.began,
            parent=self.parent,
            fork=self.fork,
            blobs=tuple(blobs),
            images=tuple(self.images),
        )

    def delta(self, index: int) -> SegmentDelta:
        at = self.journalled
        self.journalled = len(self.ids)
        return SegmentDelta(
            segment=index,
            at=at,
            token_ids=np.array(self.ids[at:], dtype="<u4"),
            sampled_mask=np.frombuffer(bytes(self.sampled[at:]), dtype=np.uint8),
            loss_mask=np.frombuffer(bytes(self.loss[at:]), dtype=np.uint8),
            logprobs=np.array(self.logprobs[at:], dtype="<f4"),
            versions=tuple(span for span in self.versions if span.end > at),
            began=self.began,
            parent=self.parent,
            fork=self.fork,
            images=tuple(image for image in self.images if image.start >= at),
        )


def _record_of(placed: PlacedImage) -> SegmentImage:
    kind = placed.image.kind
    return SegmentImage(
        start=placed.start, end=placed.end, media_type=kind.media_type, width=kind.width, height=kind.height, blob=placed.image.blob
    )


def _joined(parts: Sequence[ExpertRows]) -> ExpertRows:
    joined: ExpertRows = parts[0] if len(parts) == 1 else np.concatenate(parts)  # type: ignore[assignment]  # all of one dtype
    return joined


class TrajectoryRecorder:
    """Records while the agent runs; can be turned into a `Trajectory` at any moment, also after an error."""

    def __init__(self) -> None:
        self._segments: list[_OpenSegment] = []
        self._turns: list[Turn] = []
        self._messages: list[ChatMessage] = []
        self._n_sampled = 0
        self._n_journalled = 0
        self._turns_journalled = 0
        self._messages_journalled = 0

    # ---- what is there

    @property
    def ids(self) -> Sequence[int]:
        """Ids of the segment that grows; the next prompt begins with them. Not to be changed."""
        return self._segments[-1].ids if self._segments else ()

    @property
    def turn_places(self) -> Sequence[tuple[int, int]]:
        """Where in the growing segment the model's turns stand."""
        return self._segments[-1].turns if self._segments else ()

    @property
    def turns(self) -> Sequence[Turn]:
        """Model calls so far."""
        return self._turns

    @property
    def sampled_tokens(self) -> int:
        """Sampled so far, over all segments."""
        return self._n_sampled

    @property
    def expert_rows(self) -> int:
        """Tokens of the growing segment whose experts are here; the next call need not say those again."""
        return self._segments[-1].expert_rows if self._segments else 0

    def experts(self) -> Iterator[tuple[int, ExpertRows]]:
        """Each segment that has them of all tokens before its last sampled one: its index, and the experts of its tokens from the first on.
        One that ended with an aborted call may not."""
        for index, segment in enumerate(self._segments):
            if segment.experts and segment.turns[-1][1] - 1 <= segment.expert_rows:
                yield index, _joined(segment.experts)

    # ---- recording

    def add_prompt(self, ids: Sequence[int], began: str = "", images: Sequence[PlacedImage] = ()) -> None:
        """Take the prompt of the next call.

        Args:
            ids: the whole prompt.
            began: why it breaks with what is recorded, if it does.
            images: all that stand in it, in order.
        """
        if not self._segments:
            self._segments.append(_OpenSegment("start", -1, 0))
            self._segments[-1].add_context(ids)
        elif (fork := first_difference(self._segments[-1].ids, ids)) is None:
            self._extend(ids)
        else:
            self._segments.append(_OpenSegment(began or PROMPT_DIVERGED, len(self._segments) - 1, fork))
            self._segments[-1].add_context(ids)
        if images:
            self._segments[-1].add_images(images)

    def _extend(self, ids: Sequence[int]) -> None:
        segment = self._segments[-1]
        at = len(segment.ids)
        segment.add_context(ids[at:])
        if segment.parent >= 0 and segment.fork == at and not any(segment.sampled):  # so far it was a part of its parent, whole
            fork = first_difference(segment.ids, self._segments[segment.parent].ids)
            segment.fork = len(segment.ids) if fork is None else fork

    def add_call(self, result: GenResult, turn: Turn, *, train: bool = True) -> None:
        """Take what a call sampled.

        Args:
            turn: its record; `segment`, `start`, `end` and `checksum` are set here.
            train: whether its tokens may enter the loss.
        """
        segment = self._segments[-1]
        start, end = len(segment.ids), len(segment.ids) + len(result.output_ids)
        segment.add_sampled(result.output_ids, result.logprobs, train=train)
        self._n_sampled += len(result.output_ids)
        if result.experts is not None:
            segment.add_experts(result.experts)
        for span in result.spans:
            segment.add_version(VersionSpan(version=span.version, start=start + span.start, end=start + span.end))
        if segment.turns and segment.turns[-1][1] == start:
            segment.turns[-1] = (segment.turns[-1][0], end)
        else:
            segment.turns.append((start, end))
        checksum = turn_checksum(segment.ids_checksum, result.logprobs)
        self._turns.append(replace(turn, segment=len(self._segments) - 1, start=start, end=end, checksum=checksum))

    def end_turn(self, *, tools_s: float, tool_calls: int, tool_errors: int) -> None:
        """Complete the last call's record with what the environment did."""
        self._turns[-1] = replace(self._turns[-1], tools_s=tools_s, tool_calls=tool_calls, tool_errors=tool_errors)

    def add_message(self, role: str, content: str) -> None:
        """Keep a line of the dialogue for people. Lone surrogates, as in a file name that is no UTF-8, are kept as the model saw them."""
        self._messages.append(ChatMessage(role=role, content=without_surrogates(content)))

    # ---- giving away

    def take_delta(self) -> TurnDelta:
        """What was added since the last delta."""
        delta = TurnDelta(
            index=self._n_journalled,
            segments=tuple(segment.delta(index) for index, segment in enumerate(self._segments) if segment.journalled < len(segment.ids)),
            turns=tuple(self._turns[self._turns_journalled :]),
            messages=tuple(self._messages[self._messages_journalled :]),
        )
        self._n_journalled += 1
        self._turns_journalled, self._messages_journalled = len(self._turns), len(self._messages)
        return delta

    def trajectory(
        self, stop: StopReason, *, answer: str = "", extra: Json | None = None, blobs: Mapping[int, Sequence[Blob]] | None = None
    ) -> Trajectory:
        """All of it, as it stands.

        Args:
            blobs: what was kept beside segments, by index.
        """
        kept = blobs or {}
        return Trajectory(
            segments=tuple(segment.freeze(kept.get(index, ())) for index, segment in enumerate(self._segments)),
            turns=tuple(self._turns),
            stop=stop,
            messages=tuple(self._messages),
            answer=answer,
            extra=dict(extra or {}),
        )

    @classmethod
    def replay(cls, deltas: Iterable[TurnDelta]) -> TrajectoryRecorder:
        """The recorder that gave these deltas, at the last of them.

        Raises:
            ValueError: one is missing, doubled or out of order.
        """
        recorder = cls()
        for delta in deltas:
            if delta.index != recorder._n_journalled:
                raise ValueError(f"expected delta {recorder._n_journalled} of the journal, got {delta.index}")
            for part in delta.segments:
                recorder._append(part)
                recorder._n_sampled += part.sampled_mask.tobytes().count(1)
            for turn in delta.turns:
                places = recorder._segments[turn.segment].turns
                if places and places[-1][1] == turn.start:
                    places[-1] = (places[-1][0], turn.end)
                elif turn.end > turn.start:
                    places.append((turn.start, turn.end))
            recorder._turns.extend(delta.turns)
            recorder._messages.extend(delta.messages)
            recorder._n_journalled += 1
            recorder._turns_journalled, recorder._messages_journalled = len(recorder._turns), len(recorder._messages)
        return recorder

    def _append(self, part: SegmentDelta) -> None:
        if part.segment == len(self._segments):
            self._segments.append(_OpenSegment(part.began, part.parent, part.fork))
        if part.segment != len(self._segments) - 1 or part.at != len(self._segments[-1].ids):
            raise ValueError(f"delta of segment {part.segment} at {part.at} does not continue what is there")
        segment = self._segments[-1]
        segment.fork = part.fork
        segment.ids.extend(part.token_ids.tolist())
        segment.ids_checksum = add_ids(segment.ids_checksum, part.token_ids)
        segment.sampled.extend(part.sampled_mask.tobytes())
        segment.loss.extend(part.loss_mask.tobytes())
        segment.logprobs.extend(part.logprobs.tolist())
        segment.images += part.images
        for span in part.versions:
            if segment.versions and segment.versions[-1].start == span.start:
                segment.versions[-1] = span
            else:
                segment.versions.append(span)
        segment.journalled = len(segment.ids)
