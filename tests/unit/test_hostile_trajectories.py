"""Whatever a record holds, as long as it can be decoded, it is judged and shown, and neither ends in an error."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ops.trajectory.report import as_map, lines_of
from ops.trajectory.verdict import Check, judge
from ops.trajectory.view import parts_as_maps, render
from pipeline.codec import encode
from pipeline.messages import ChatMessage, Sampling, Segment, StopReason, Trajectory, Turn, VersionSpan
from pipeline.testing.builders import a_segment, a_trajectory, a_turn
from pipeline.trajectory_file import record_of
from workers.agent import TrajectoryRecorder
from workers.agent.invariants import BAD_ARRAYS, faults_of
from workers.llm.tokenizer import load

WHOLE = st.one_of(st.integers(-3, 12), st.integers(-(2**63), 2**64 - 1))
NUMBER = st.one_of(st.floats(0, 1), st.floats())
TEXT = st.one_of(
    st.sampled_from(["", "1.0", "stop", "raw", "start", load().fingerprint]), st.text(st.characters(codec="utf-8"), max_size=300)
)

LABELS = st.lists(st.sampled_from(["1.0", "\n", "✓ other.trajectory: 3 turns", "\r", "\x1b[1A", "\u2028", "é"]), max_size=4).map("".join)


def arrays(dtype: str, values: st.SearchStrategy[int | float]) -> st.SearchStrategy[np.ndarray]:
    """Arrays of a few entries, most of one length."""
    length = st.one_of(st.just(6), st.integers(0, 9))
    return length.flatmap(lambda n: st.lists(values, min_size=n, max_size=n)).map(lambda entries: np.array(entries, dtype=dtype))


BITS = arrays("u1", st.one_of(st.integers(0, 1), st.integers(0, 255)))
SEGMENTS = st.builds(
    Segment,
    token_ids=arrays("<u4", st.one_of(st.integers(0, 99), st.integers(0, 2**32 - 1))),
    sampled_mask=BITS,
    loss_mask=BITS,
    logprobs=arrays("<f4", st.floats(width=32)),
    versions=st.lists(st.builds(VersionSpan, version=TEXT, start=WHOLE, end=WHOLE), max_size=3).map(tuple),
    began=TEXT,
    parent=WHOLE,
    fork=WHOLE,
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=NUMBER,
    top_p=NUMBER,
    top_k=WHOLE,
    min_p=NUMBER,
    presence_penalty=NUMBER,
    repetition_penalty=NUMBER,
    max_tokens=WHOLE,
)
TURNS = st.builds(
    Turn,
    index=WHOLE,
    segment=WHOLE,
    start=WHOLE,
    end=WHOLE,
    finish=TEXT,
    sampling=SAMPLINGS,
    seed=WHOLE,
    server=TEXT,
    request_id=TEXT,
    cached_tokens=WHOLE,
    logprobs_mode=TEXT,
    template=TEXT,
    tokenizer=TEXT,
    model_s=NUMBER,
    checksum=WHOLE,
)
TRAJECTORIES = st.builds(
    Trajectory,
    segments=st.lists(SEGMENTS, max_size=3).map(tuple),
    turns=st.lists(TURNS, max_size=4).map(tuple),
    stop=st.sampled_from(StopReason),
    messages=st.lists(st.builds(ChatMessage, role=TEXT, content=TEXT), max_size=2).map(tuple),
)


@given(TRAJECTORIES)
def test_any_record_is_judged_and_shown(trajectory: Trajectory) -> None:
    record = record_of("x", encode(trajectory), {"job": "x"})

    check = Check(verdicts=[judge(record)])

    lines = list(lines_of(check))
    assert not set("\x1b\x07\r\x9b") & set("".join(lines))
    assert all(len(line) < 2000 for line in lines)
    assert as_map(check)["fine"] is check.is_fine
    if any(fault.what == BAD_ARRAYS for fault in faults_of(record.trajectory)):
        return
    for turn in (None, 0):
        console = Console(file=io.StringIO(), width=80, color_system=None)
        render(console, record, load(), turn=turn, ids=False, every_logprob=True, whole=False)
        list(parts_as_maps(record, load(), turn=turn))


@given(LABELS, LABELS, LABELS)
def test_no_label_of_a_record_writes_a_line_of_ours(name: str, fact: str, label: str) -> None:
    """A version that was called `1.0`, a line end and `✓ other.trajectory: 3 turns` showed a second record that keeps its promises."""
    spans = (VersionSpan(version=label, start=5, end=8),)
    turn = replace(a_turn(0), server=label, finish=label, logprobs_mode=label)
    trajectory = a_trajectory(segments=(a_segment(versions=spans, began=label),), turns=(turn,))
    record = record_of(name, encode(trajectory), {"job": fact, fact: fact})
    console = Console(file=io.StringIO(), width=10_000, highlight=False, no_color=True)

    lines = list(lines_of(Check(verdicts=[judge(record)])))
    render(console, record, load(), turn=None, ids=True, every_logprob=False, whole=True)

    assert [line for line in lines if "\n" in line] == []
    assert len(str(console.file.getvalue()).splitlines()) == 5  # type: ignore[attr-defined]  # a StringIO


@given(st.text("⟦⟧‹›a ", max_size=20))
def test_without_colour_no_text_looks_as_if_it_were_sampled(said: str) -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt(load().encode(f"Hi{said}"))
    record = record_of("job", encode(recorder.trajectory(StopReason.CONTEXT)), {})
    console = Console(file=io.StringIO(), width=10_000, highlight=False, no_color=True)

    render(console, record, load(), turn=None, ids=False, every_logprob=False, whole=True)

    assert not set("⟦⟧‹›") & set(console.file.getvalue())  # type: ignore[attr-defined]  # a StringIO
