"""A trajectory on a terminal, token by token: who said what, and how probable the model found what it said.

With colour the mask is the colour: context is dim, sampled text green to red with falling probability, what is kept out of the loss in
italics. Without colour sampled stretches stand between ⟦ and ⟧, and improbable tokens between ‹ and ›. What a terminal would obey is spelt
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from ops.trajectory.pieces import Part, Piece, Stretch, fitting, parts_of
from ops.visible_text import visible, visible_line
from pipeline.messages import Trajectory, Turn
from pipeline.trajectory_file import TrajectoryRecord
from workers.llm.tokenizer import Tokenizer

CONTEXT_SHOWN = 120
"""Pieces of context at each end of a long one."""
IMPROBABLE = -3.0
"""Nats: below, a token stands out; 5 %."""
SHADES = ((-0.1, "green"), (-1.0, "bright_green"), (IMPROBABLE, "yellow"), (-math.inf, "bold bright_red"))

SPELT_BRACKETS = str.maketrans({bracket: bracket.encode("unicode_escape").decode() for bracket in "⟦⟧‹›"})
"""Without colour these are ours: a context that has them would look as if it were sampled."""


def render(
    console: Console,
    record: TrajectoryRecord,
    tokenizer: Tokenizer | None,
    *,
    turn: int | None,
    ids: bool,
    every_logprob: bool,
    whole: bool,
) -> None:
    """Prints a record.

    Args:
        tokenizer: used where the record was made with it.
        turn: only this one.
        ids: ids in place of text.
        every_logprob: behind each sampled token, not only improbable ones.
        whole: context uncut.
    """
    trajectory = record.trajectory
    fits = fitting(trajectory, tokenizer)
    painter = Painter(console, ids=ids or fits is None, every_logprob=every_logprob, whole=whole)
    facts = " · ".join(f"{name} {value}" for name, value in record.facts.items() if name != "job")
    _line(console, record.facts.get("job", record.name), "bold", facts)
    if fits is None and not ids:
        prints = sorted({turn_.tokenizer[:12] for turn_ in trajectory.turns})
        _line(console, "ids", "bold", f"no tokenizer fits (the record's: {', '.join(prints) or 'none'}); name one with --tokenizer")
    for part in parts_of(trajectory, fits):
        number = part.turn.index if part.turn is not None else None
        if turn is None or number == turn:
            painter.part(part, trajectory.segments[part.segment].began, trajectory.segments[part.segment].parent)
    for line in blob_lines(trajectory):
        _line(console, "kept beside it", "bold", line)
    for line in image_lines(trajectory):
        _line(console, "image", "bold", line)
    stopped = f"stopped: {trajectory.stop.value} after {len(trajectory.turns)} turns"
    console.print(Text(stopped if record.ended else "it runs; these are its finished turns", "bold"))


def blob_lines(trajectory: Trajectory) -> list[str]:
    """What segments name that is kept beside the record, a line each."""
    return [
        visible_line(f"segment {number}: {blob.name} {blob.dtype} {list(blob.shape)}, {blob.n_bytes:,} bytes, {blob.uri}")
        for number, segment in enumerate(trajectory.segments)
        for blob in segment.blobs
    ]


def image_lines(trajectory: Trajectory) -> list[str]:
    """What images segments name, a line each."""
    return [
        visible_line(
            f"segment {number}, tokens {image.start:,} to {image.end:,}: {image.media_type} {image.width:,} x {image.height:,}, "
            f"{image.blob.n_bytes:,} bytes, sha256 {image.blob.digest}, {image.blob.uri}"
        )
        for number, segment in enumerate(trajectory.segments)
        for image in segment.images
    ]


def blobs_of(trajectory: Trajectory) -> list[tuple[int, dict[str, object]]]:
    """The blobs as plain values, each with its segment."""
    return [(number, asdict(blob)) for number, segment in enumerate(trajectory.segments) for blob in segment.blobs]


def image_maps(trajectory: Trajectory) -> list[dict[str, object]]:
    """The images as plain values."""
    return [{"segment": number, **asdict(image)} for number, segment in enumerate(trajectory.segments) for image in segment.images]


class Painter:
    """Prints parts of a trajectory."""

    def __init__(self, console: Console, *, ids: bool, every_logprob: bool, whole: bool) -> None:
        self._console = console
        self._plain = console.no_color or console.color_system is None
        self._ids = ids
        self._every_logprob = every_logprob
        self._whole = whole

    def part(self, part: Part, began: str, parent: int) -> None:
        """A turn with what came before it, under a heading."""
        if part.begins_segment:
            forked = f", shares {part.shared:,} tokens with segment {parent}" if parent >= 0 else ""
            _line(self._console, f"segment {part.segment}", "bold", f"began: {began}{forked}")
        self._console.print(Text(_heading(part.turn), "bold cyan"), overflow="fold")
        text = Text(overflow="fold")
        for stretch in part.stretches:
            self._stretch(text, stretch)
        self._console.print(text, end="\n")

    def _stretch(self, text: Text, stretch: Stretch) -> None:
        pieces = stretch.pieces
        if not stretch.sampled:
            cut = len(pieces) - 2 * CONTEXT_SHOWN
            if self._whole or cut <= 0:
                self._say(text, pieces, "dim")
            else:
                self._say(text, pieces[:CONTEXT_SHOWN], "dim")
                text.append(f" […{cut:,} more…] ", "" if self._plain else "reverse dim")
                self._say(text, pieces[-CONTEXT_SHOWN:], "dim")
            return
        text.append("⟦" if self._plain else "")
        for piece in pieces:
            self._sampled(text, piece, trained=stretch.trained)
        text.append("⟧" + ("" if stretch.trained else "(no loss)") if self._plain else "")

    def _say(self, text: Text, pieces: tuple[Piece, ...], style: str) -> None:
        for piece in pieces:
            text.append(self._text(piece), "" if self._plain else style)

    def _sampled(self, text: Text, piece: Piece, *, trained: bool) -> None:
        improbable = not piece.lowest > IMPROBABLE
        style = next((style for above, style in SHADES if piece.lowest > above), SHADES[-1][1])
        said = self._text(piece)
        if improbable and self._plain:
            said = f"‹{said}›"
        text.append(said, "" if self._plain else style + ("" if trained else " italic"))
        if improbable or self._every_logprob:
            numbers = " ".join(f"{value:.2f}" for value in piece.logprobs)
            text.append(f"[{numbers}]", "" if self._plain else "dim")

    def _text(self, piece: Piece) -> str:
        if self._ids or piece.text is None:
            return " ".join(map(str, piece.ids)) + " "
        said = visible(piece.text)
        return said.translate(SPELT_BRACKETS) if self._plain else said


def _heading(turn: Turn | None) -> str:
    if turn is None:
        return "── after the last turn"
    s = turn.sampling
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    more = "".join(f", {name} {getattr(s, name):g}" for name, value in off.items() if getattr(s, name) != value)
    cached = f", {turn.cached_tokens:,} cached" if turn.cached_tokens >= 0 else ""
    return visible_line(
        f"── turn {turn.index}: tokens {turn.start:,} to {turn.end:,}, {turn.end - turn.start:,} sampled{cached}, {turn.finish} · "
        f"temperature {s.temperature:g}{more} · {turn.logprobs_mode} · {turn.server}"
    )


def _line(console: Console, head: str, style: str, rest: str) -> None:
    console.print(Text.assemble((visible_line(head), style), "  ", visible_line(rest)), overflow="fold")


def parts_as_maps(record: TrajectoryRecord, tokenizer: Tokenizer | None, *, turn: int | None) -> Iterator[dict[str, object]]:
    """The record's turns with their tokens, for `--json`: a missing logprob is null, text that is not known as well."""
    for part in parts_of(record.trajectory, fitting(record.trajectory, tokenizer)):
        if turn is not None and (part.turn is None or part.turn.index != turn):
            continue
        yield {
            "segment": part.segment,
            "turn": None if part.turn is None else part.turn.index,
            "pieces": [
                {
                    "start": piece.start,
                    "ids": list(piece.ids),
                    "text": piece.text,
                    "sampled": stretch.sampled,
                    "trained": stretch.trained,
                    "logprobs": [None if math.isnan(value) else value for value in piece.logprobs] if stretch.sampled else None,
                }
                for stretch in part.stretches
                for piece in stretch.pieces
            ],
        }
