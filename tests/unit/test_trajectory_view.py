"""`trajectory show`: every token once, in order, with its mask; nothing that a terminal would obey."""

from __future__ import annotations

import io
import unicodedata
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ops.trajectory.pieces import parts_of
from ops.trajectory.view import blobs_of, parts_as_maps, render
from ops.visible_text import visible
from pipeline.codec import encode
from pipeline.messages import Blob, StopReason, Trajectory
from pipeline.testing.builders import a_turn
from pipeline.trajectory_file import TrajectoryRecord, record_of
from tests.model_answers import a_result
from workers.agent import TrajectoryRecorder
from workers.llm.tokenizer import load

TOKENIZER = load()


def a_record(*, context: str = "What is it?", answer: str = "It is four.", logprobs: list[float] | None = None) -> TrajectoryRecord:
    """Two turns and a tool's answer between them."""
    recorder = TrajectoryRecorder()
    recorder.add_prompt(TOKENIZER.encode_template("<|im_start|>user\n") + TOKENIZER.encode(context))
    recorder.add_call(a_result(TOKENIZER.encode(answer), logprobs), a_turn(0, tokenizer=TOKENIZER.fingerprint))
    recorder.add_prompt([*recorder.ids, *TOKENIZER.encode(" The tool says 4.")])
    recorder.add_call(a_result(TOKENIZER.encode("Four!")), a_turn(1, tokenizer=TOKENIZER.fingerprint))
    return record_of("job-1", encode(recorder.trajectory(StopReason.FINISHED)), {"job": "job-1", "task": "math"})


def shown(record: TrajectoryRecord, *, width: int = 80, colour: bool = False, **options: object) -> str:
    """What is printed."""
    system: Literal["truecolor"] | None = "truecolor" if colour else None
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=colour, color_system=system, no_color=not colour)
    chosen: dict[str, object] = {"turn": None, "ids": False, "every_logprob": False, "whole": False, **options}
    render(console, record, TOKENIZER, **chosen)  # type: ignore[arg-type]  # the view's own options
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # a StringIO


def test_without_colour_sampled_stretches_stand_between_brackets() -> None:
    text = shown(a_record())

    assert "What is it?⟦It is four.⟧" in text
    assert "The tool says 4.⟦Four!⟧" in text
    assert "\x1b" not in text


def test_what_is_kept_beside_a_segment_is_listed_and_hostile_names_are_spelt_out() -> None:
    record = a_record()
    blob = Blob(
        name="routed_experts",
        digest="00" * 32,
        dtype="uint8",
        shape=(9, 4, 2),
        n_bytes=72,
        uri="blob:r/r.x/2-000000000000/routed_experts.0\x1b[31m",
    )
    segment = replace(record.trajectory.segments[0], blobs=(blob,))
    kept = replace(record, trajectory=replace(record.trajectory, segments=(segment,)))

    text = " ".join(shown(kept, width=200).split())

    assert "kept beside it segment 0: routed_experts uint8 [9, 4, 2], 72 bytes, blob:r/r.x/2-000000000000/routed_experts.0" in text
    assert "\x1b" not in text
    assert blobs_of(kept.trajectory)[0][1]["shape"] == (9, 4, 2)
    assert "kept beside it" not in shown(record)


def test_no_line_is_wider_than_the_terminal() -> None:
    text = shown(a_record(context="word " * 300, answer="x" * 500), whole=True)

    assert max(map(len, text.splitlines())) <= 80


def test_with_colour_the_mask_is_the_colour_and_nothing_is_bracketed() -> None:
    text = shown(a_record(), colour=True)

    assert "\x1b[2m" in text
    assert "\x1b[92m" in text
    assert "⟦" not in text


def test_improbable_tokens_show_their_logprob() -> None:
    n = len(TOKENIZER.encode("It is four."))
    record = a_record(logprobs=[-0.01] * (n - 1) + [-7.25])

    assert "[-7.25]⟧" in shown(record)
    assert "‹" in shown(record)
    assert "[-0.01]" not in shown(record)
    assert "[-0.01]" in shown(record, every_logprob=True)


def test_one_turn_alone() -> None:
    text = shown(a_record(), turn=1)

    assert "⟦Four!⟧" in text
    assert "It is four." not in text


def test_ids_in_place_of_text() -> None:
    ids = TOKENIZER.encode("Four!")

    assert f"⟦{' '.join(map(str, ids))} ⟧" in shown(a_record(), ids=True)


def test_ids_are_shown_when_no_tokenizer_fits() -> None:
    record = a_record()
    foreign = replace(
        record, trajectory=replace(record.trajectory, turns=tuple(replace(t, tokenizer="other") for t in record.trajectory.turns))
    )

    text = shown(foreign)

    assert "no tokenizer fits (the record's: other)" in text
    assert "It is four." not in text


def test_what_is_kept_out_of_the_loss_is_told() -> None:
    record = a_record()
    segment = record.trajectory.segments[0]
    masked = replace(segment, loss_mask=np.zeros_like(segment.loss_mask))

    text = shown(replace(record, trajectory=replace(record.trajectory, segments=(masked,))))

    assert "⟦Four!⟧(no loss)" in text


def test_long_context_is_cut_and_says_how_much() -> None:
    record = a_record(context="one two three four five " * 200)

    assert "more…]" in shown(record)
    assert "more…]" not in shown(record, whole=True)


def test_a_segment_says_why_it_began_and_does_not_show_twice_what_it_shares() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt(TOKENIZER.encode("SHARED words, thought"))
    recorder.add_call(a_result(TOKENIZER.encode("first")), a_turn(0, tokenizer=TOKENIZER.fingerprint))
    kept = TOKENIZER.encode("SHARED words")
    recorder.add_prompt([*kept, *TOKENIZER.encode(" go on")], "thinking_dropped")
    recorder.add_call(a_result(TOKENIZER.encode("second")), a_turn(1, tokenizer=TOKENIZER.fingerprint))
    record = record_of("j", encode(recorder.trajectory(StopReason.FINISHED)), {})

    text = shown(record)

    assert f"segment 1  began: thinking_dropped, shares {len(kept)} tokens with segment 0" in text
    assert text.count("SHARED") == 1


CONTROLS = "\x1b[2J\x07\x08\r\x9b31m\u202e\u200b\x00\ud800"


def test_nothing_that_a_terminal_obeys_gets_to_it() -> None:
    text = shown(a_record(context=CONTROLS.replace("\ud800", ""), answer="a\x1b]0;title\x07b"))

    assert not set("\x1b\x07\x08\r\x9b\u202e\u200b\x00") & set(text)
    assert r"\x1b[2J\x07" in text
    assert r"a\x1b]0;title\x07b" in text


@given(st.text())
def test_visible_text_has_lines_and_printable_characters_only(text: str) -> None:
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp") for c in visible(text))
    assert visible(visible(text)) == visible(text)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=40), st.integers(0, 39))
def test_every_token_is_in_one_piece_whatever_bytes_it_holds(ids: list[int], cut: int) -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, *ids[:cut]])
    recorder.add_call(a_result(ids[cut:]), a_turn(0))
    trajectory: Trajectory = recorder.trajectory(StopReason.FINISHED)

    pieces = [piece for part in parts_of(trajectory, TOKENIZER) for stretch in part.stretches for piece in stretch.pieces]

    assert [id_ for piece in pieces for id_ in piece.ids] == [1, *ids]
    assert [piece.start for piece in pieces] == np.cumsum([0, *(len(piece.ids) for piece in pieces)])[:-1].tolist()
    assert all(len(piece.logprobs) == len(piece.ids) for piece in pieces)


def test_as_plain_values_a_missing_logprob_is_null() -> None:
    parts = list(parts_as_maps(a_record(), TOKENIZER, turn=None))

    pieces = [piece for part in parts for piece in part["pieces"]]  # type: ignore[attr-defined]  # lists of maps
    assert [part["turn"] for part in parts] == [0, 1]
    assert {piece["sampled"] for piece in pieces if piece["logprobs"] is None} == {False}
    assert all(value == pytest.approx(-0.5) for piece in pieces if piece["sampled"] for value in piece["logprobs"])
