"""The check of records sees each way to break promises 5 and 6, and says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pipeline.codec import decode, encode
from pipeline.messages import Sampling, Segment, StopReason, Trajectory, VersionSpan
from pipeline.testing.builders import a_segment, a_trajectory, a_turn
from tests.model_answers import a_result
from workers.agent import TrajectoryRecorder, broken_promises
from workers.agent.invariants import Fault, common_prefix, faults_of
from workers.llm.validate import check_logprobs

IDS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
"""Of few ids, so that prompts share more than they were told to."""


@st.composite
def recorded(draw: st.DrawFn) -> Trajectory:
    """A trajectory as the agent records it: calls, prompts that extend, now and then one that does not."""
    recorder = TrajectoryRecorder()
    recorder.add_prompt(draw(IDS))
    for number in range(draw(st.integers(1, 4))):
        ids = draw(IDS)
        logprobs = draw(st.lists(st.floats(-20, 0, width=32), min_size=len(ids), max_size=len(ids)))
        recorder.add_call(a_result(ids, logprobs, draw(st.sampled_from([("1.0",), ("1.0", "1.1")]))), a_turn(number))
        keep = draw(st.one_of(st.none(), st.integers(0, len(recorder.ids) - 1)))
        kept = list(recorder.ids) if keep is None else list(recorder.ids[:keep])
        recorder.add_prompt([*kept, *draw(IDS)], "" if keep is None else "thinking_dropped")
    return recorder.trajectory(StopReason.FINISHED)


@given(recorded())
def test_what_the_agent_records_has_no_faults_before_and_after_it_travelled(trajectory: Trajectory) -> None:
    assert faults_of(trajectory) == []
    assert faults_of(decode(Trajectory, encode(trajectory))) == []


@pytest.mark.parametrize("logprob", [-8999.9999999, 1e-3, -0.0])
def test_a_logprob_that_the_wire_takes_is_one_after_it_was_rounded(logprob: float) -> None:
    """One just above the lowest became the lowest as f32, and the record was refused."""
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1])
    recorder.add_call(a_result([2], check_logprobs([logprob], 1), ("1.0",)), a_turn(0))

    assert faults_of(recorder.trajectory(StopReason.FINISHED)) == []


def test_many_turns_over_the_same_tokens_are_told_in_no_time() -> None:
    """Each was checked over its whole segment: a file of some megabytes took hours."""
    trajectory = a_trajectory(segments=(a_segment(200_000, 199_995),))
    turn = replace(trajectory.turns[0], checksum=7)
    many = tuple(replace(turn, index=number, start=5 - number % 2, end=200_000 - number % 3) for number in range(50_000))

    faults = faults_of(replace(trajectory, turns=many))

    assert sum(fault.what == "turns out of order" for fault in faults) == len(many) - 1


# ---- one change at a time


def with_segment(trajectory: Trajectory, index: int, /, **changes: object) -> Trajectory:
    """With one segment changed."""
    segments = list(trajectory.segments)
    segments[index] = replace(segments[index], **changes)  # type: ignore[arg-type]  # the record's own fields
    return replace(trajectory, segments=tuple(segments))


def with_turn(trajectory: Trajectory, which: int, /, **changes: object) -> Trajectory:
    """With one turn changed."""
    turns = list(trajectory.turns)
    turns[which] = replace(turns[which], **changes)  # type: ignore[arg-type]  # the record's own fields
    return replace(trajectory, turns=tuple(turns))


def changed(array: np.ndarray, place: int, value: float) -> np.ndarray:
    """A copy with another value at one place."""
    copy = array.copy()
    copy[place] = value
    return copy


def a_place(draw: st.DrawFn, places: np.ndarray) -> int:
    """One of some places; the example is dropped when there is none."""
    if not len(places):
        reject()
    return int(draw(st.sampled_from(places.tolist())))


def flip_sampled(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    mask = t.segments[i].sampled_mask
    place = a_place(draw, np.arange(len(mask)))
    return with_segment(t, i, sampled_mask=changed(mask, place, 1 - int(mask[place])))


def loss_outside(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    place = a_place(draw, np.flatnonzero(t.segments[i].sampled_mask == 0))
    return with_segment(t, i, loss_mask=changed(t.segments[i].loss_mask, place, 1))


def another_id(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    ends = [turn.end for turn in t.turns if turn.segment == i]
    ids = t.segments[i].token_ids
    place = a_place(draw, np.arange(max(ends, default=0)))
    return with_segment(t, i, token_ids=changed(ids, place, int(ids[place]) + draw(st.integers(1, 5))))


def another_logprob(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    logprobs = t.segments[i].logprobs
    place = a_place(draw, np.flatnonzero(t.segments[i].sampled_mask))
    value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.5, -9999.0, float(np.nextafter(logprobs[place], np.float32(-30)))]))
    return with_segment(t, i, logprobs=changed(logprobs, place, value))


def logprob_outside(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    place = a_place(draw, np.flatnonzero(t.segments[i].sampled_mask == 0))
    return with_segment(t, i, logprobs=changed(t.segments[i].logprobs, place, draw(st.sampled_from([0.0, -1.0, np.inf]))))


def shifted_span(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    spans = list(t.segments[i].versions)
    which = a_place(draw, np.arange(len(spans)))
    by = draw(st.sampled_from([(-1, -1), (1, 1), (0, 1), (0, -1), (1, 0), (-1, 0)]))
    spans[which] = replace(spans[which], start=spans[which].start + by[0], end=spans[which].end + by[1])
    return with_segment(t, i, versions=tuple(spans))


def moved_turn(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    which = draw(st.integers(0, len(t.turns) - 1))
    by = draw(st.sampled_from([(-1, -1), (1, 1), (0, 1), (0, -1), (1, 0), (-1, 0)]))
    turn = t.turns[which]
    return with_turn(t, which, start=turn.start + by[0], end=turn.end + by[1])


def lost_turn(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    which = draw(st.integers(0, len(t.turns) - 1))
    return replace(t, turns=t.turns[:which] + t.turns[which + 1 :])


def another_fork(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    return with_segment(t, i, fork=t.segments[i].fork + draw(st.sampled_from([-1, 1, 3])))


def no_reason(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    return with_segment(t, i, began="")


def cut_array(draw: st.DrawFn, t: Trajectory, i: int) -> Trajectory:
    name = draw(st.sampled_from(["token_ids", "sampled_mask", "loss_mask", "logprobs"]))
    return with_segment(t, i, **{name: getattr(t.segments[i], name)[:-1]})


MUTATIONS: list[Callable[[st.DrawFn, Trajectory, int], Trajectory]] = [
    flip_sampled,
    loss_outside,
    another_id,
    another_logprob,
    logprob_outside,
    shifted_span,
    moved_turn,
    lost_turn,
    another_fork,
    no_reason,
    cut_array,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@given(data=st.data())
def test_each_single_change_of_a_record_is_found(mutate: Callable[..., Trajectory], data: st.DataObject) -> None:
    trajectory = data.draw(recorded())
    index = data.draw(st.integers(0, len(trajectory.segments) - 1))

    broken = mutate(data.draw, trajectory, index)

    faults = faults_of(broken)
    assert faults
    assert all(fault.expected and fault.found and fault.what in str(fault) for fault in faults)


# ---- what is said


def a_good_one() -> Trajectory:
    """One segment of eight tokens, the last three sampled in one turn."""
    return replace(a_trajectory(), segments=(a_segment(8, 3),), turns=(a_turn(0, segment=0, start=5, end=8),))


def segment(change: Callable[[Segment], Segment]) -> Trajectory:
    """The good one, its segment changed."""
    good = a_good_one()
    return replace(good, segments=(change(good.segments[0]),))


def turn(**changes: object) -> Trajectory:
    """The good one, its turn changed."""
    return with_turn(a_good_one(), 0, **changes)


def two(**changes: object) -> Trajectory:
    """A second segment that shares five tokens with the first."""
    first = a_segment(8, 3)
    ids = np.concatenate([first.token_ids[:5], first.token_ids[5:] + 1])
    second = a_segment(8, 0, token_ids=ids.astype(np.uint32), began="prompt_diverged", parent=0, fork=5)
    return with_segment(replace(a_good_one(), segments=(first, second)), 1, **changes)


def span(*edges: tuple[int, int], label: str = "v") -> tuple[VersionSpan, ...]:
    """Version spans."""
    return tuple(VersionSpan(version=label, start=start, end=end) for start, end in edges)


BROKEN: dict[str, Trajectory] = {
    "expected one length, found token_ids 8, sampled_mask 8, loss_mask 7": segment(lambda s: replace(s, loss_mask=s.loss_mask[:-1])),
    "expected token_ids as uint32 [T], found int64 [8]": segment(lambda s: replace(s, token_ids=s.token_ids.astype(np.int64))),
    "segment 0, token 0: loss on a token that was not sampled: expected loss_mask of 0, found 1 (and 4 more)": segment(
        lambda s: replace(s, loss_mask=np.ones(8, np.uint8))
    ),
    "token 5: a sampled token without a logprob: expected a finite logprob of at most 0, found nan (and 2 more)": segment(
        lambda s: replace(s, logprobs=np.full(8, np.nan, np.float32))
    ),
    "a logprob on a token that was not sampled": segment(lambda s: replace(s, logprobs=np.zeros(8, np.float32))),
    "a mask that is none: expected sampled_mask of 0 or 1, found 2": segment(lambda s: replace(s, sampled_mask=s.sampled_mask * 2)),
    "token 7: version spans that do not cover exactly what was sampled: expected a version, found none": segment(
        lambda s: replace(s, versions=span((5, 7)))
    ),
    "version spans out of order": segment(lambda s: replace(s, versions=span((7, 8), (5, 7)))),
    "a version without a label": segment(lambda s: replace(s, versions=span((5, 8), label=""))),
    "a first segment that is not the start": segment(lambda s: replace(s, parent=0)),
    "a parent that does not come before: expected -1 to 0, found 1": two(parent=1),
    "segment 1, token 3: a fork that is not what it shares with segment 0: expected 5, found 3": two(fork=3),
    "a fork without a parent: expected 0, found 5": two(parent=-1),
    "a segment that does not say why it began: expected a reason, found 'start'": two(began="start"),
    "token 5: turns that are not exactly what was sampled: expected a token of a turn": replace(a_good_one(), turns=()),
    "a turn that stands nowhere": turn(end=9),
    "behind a prompt": turn(start=0),
    "turns out of order": turn(index=1),
    "an unknown finish": turn(finish="tired"),
    "an unknown logprobs mode": turn(logprobs_mode="cooked"),
    "a turn above its budget: expected at most 2, found 3 tokens": turn(sampling=Sampling(max_tokens=2)),
    "impossible sampling: expected parameters in their ranges, found top_p 1.5": turn(sampling=Sampling(top_p=1.5)),
    "ids or logprobs other than were sent and sampled: expected checksum 00000007": turn(checksum=7),
}


def test_a_good_trajectory_has_no_faults() -> None:
    assert broken_promises(a_good_one()) == []
    assert broken_promises(two()) == []


@pytest.mark.parametrize("fault", BROKEN)
def test_each_fault_is_named_with_its_place_what_was_expected_and_what_was_found(fault: str) -> None:
    assert any(fault in found for found in broken_promises(BROKEN[fault])), broken_promises(BROKEN[fault])


def test_a_record_from_before_there_were_checksums_is_judged_by_the_rest() -> None:
    old = replace(a_good_one(), turns=tuple(replace(turn, checksum=-1) for turn in a_good_one().turns))

    assert broken_promises(old) == []


def test_a_prompt_that_was_a_part_of_its_parent_and_grew_shares_what_it_has_before_its_first_call() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2, 3, 4, 5])
    recorder.add_prompt([1, 2], "cut")  # whole, a part of what was there
    first = recorder.take_delta()
    recorder.add_prompt([1, 2, 3, 9])
    second = recorder.take_delta()
    recorder.add_call(a_result([4], [-1.0], ("1.0",)), a_turn())

    trajectory = recorder.trajectory(StopReason.FINISHED)

    assert trajectory.segments[1].fork == common_prefix(trajectory.segments[0].token_ids, trajectory.segments[1].token_ids) == 3
    assert broken_promises(trajectory) == []
    assert TrajectoryRecorder.replay([first, second]).trajectory(StopReason.LOST).segments[1].fork == 3


def test_faults_say_where() -> None:
    fault = Fault(what="a thing", expected="this", found="that", segment=1, turn=2, place=3, more=4)

    assert str(fault) == "segment 1, turn 2, token 3: a thing: expected this, found that (and 4 more)"
    assert str(Fault(what="a thing", expected="this", found="that")) == "a thing: expected this, found that"


@given(recorded())
def test_checksums_are_made_when_the_answer_comes_and_travel_with_it(trajectory: Trajectory) -> None:
    assert all(0 <= turn.checksum < 2**32 for turn in trajectory.turns)
    assert decode(Trajectory, encode(trajectory)).turns == trajectory.turns
