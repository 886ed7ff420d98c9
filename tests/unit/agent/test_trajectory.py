"""Promises 5 and 6: what was sampled is stored bit for bit, all arrays of a segment are of one length, masks say who spoke."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.codec import decode, encode
from pipeline.messages import StopReason, Trajectory
from pipeline.testing.builders import a_turn
from tests.model_answers import a_result
from workers.agent import TrajectoryRecorder, TurnDelta, broken_promises
from workers.agent.trajectory import PROMPT_DIVERGED

IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8)
LOGPROB = st.floats(-50, 0, width=32)


@dataclass
class Said:
    """What was given to the recorder, kept apart from it."""

    prompts: list[list[int]] = field(default_factory=list)
    """The ids of each segment."""
    sampled: list[list[tuple[int, int, float]]] = field(default_factory=list)
    """Place, id and logprob of each sampled token, by segment."""


class RecorderMachine(RuleBasedStateMachine):
    """Any order of prompts that extend, prompts that diverge, and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = TrajectoryRecorder()
        self.said = Said()
        self.deltas: list[TurnDelta] = []

    @rule(ids=IDS)
    def a_prompt_that_extends(self, ids: list[int]) -> None:
        self.recorder.add_prompt([*self.recorder.ids, *ids])
        if not self.said.prompts:
            self.said.prompts.append([])
            self.said.sampled.append([])
        self.said.prompts[-1] += ids

    @precondition(lambda self: self.said.prompts)
    @rule(ids=IDS, keep=st.integers(0, 10), why=st.sampled_from(["", "thinking_dropped"]))
    def a_prompt_that_may_diverge(self, ids: list[int], keep: int, why: str) -> None:
        prompt = [*self.recorder.ids[:keep], *ids]
        extends = prompt[: len(self.recorder.ids)] == list(self.recorder.ids)
        self.recorder.add_prompt(prompt, why)
        if extends:
            self.said.prompts[-1] = prompt
        else:
            self.said.prompts.append(prompt)
            self.said.sampled.append([])

    @precondition(lambda self: self.said.prompts)
    @rule(
        tokens=st.lists(st.tuples(st.integers(0, 2**32 - 1), LOGPROB), max_size=6),
        versions=st.lists(st.sampled_from("ab"), min_size=1, max_size=3),
    )
    def a_call(self, tokens: list[tuple[int, float]], versions: list[str]) -> None:
        start = len(self.said.prompts[-1])
        ids, logprobs = [id_ for id_, _ in tokens], [value for _, value in tokens]
        self.recorder.add_call(a_result(ids, logprobs, versions), a_turn(len(self.recorder.turns)))
        self.said.sampled[-1] += [(start + i, id_, value) for i, (id_, value) in enumerate(tokens)]
        self.said.prompts[-1] += ids

    @rule()
    def a_journal_entry(self) -> None:
        self.deltas.append(self.recorder.take_delta())

    @invariant()
    def promise_5_ids_and_logprobs_are_stored_bit_for_bit(self) -> None:
        trajectory = self.recorder.trajectory(StopReason.FINISHED)
        assert [segment.token_ids.tolist() for segment in trajectory.segments] == self.said.prompts
        for segment, sampled in zip(trajectory.segments, self.said.sampled, strict=True):
            for place, id_, value in sampled:
                assert segment.token_ids[place] == id_
                assert segment.logprobs[place].tobytes() == np.float32(value).tobytes()

    @invariant()
    def promise_6_masks_and_logprobs_stand_exactly_on_what_was_sampled(self) -> None:
        trajectory = self.recorder.trajectory(StopReason.FINISHED)
        assert broken_promises(trajectory) == []
        for segment, sampled in zip(trajectory.segments, self.said.sampled, strict=True):
            assert np.flatnonzero(segment.sampled_mask).tolist() == [place for place, _, _ in sampled]
        assert self.recorder.sampled_tokens == sum(map(len, self.said.sampled))

    @invariant()
    def promise_5_a_segment_that_begins_says_why(self) -> None:
        segments = self.recorder.trajectory(StopReason.FINISHED).segments
        assert [segment.began for segment in segments[:1]] in ([], ["start"])
        assert all(segment.began in (PROMPT_DIVERGED, "thinking_dropped") for segment in segments[1:])

    def teardown(self) -> None:
        """The journal is the trajectory, also over the wire."""
        self.deltas.append(self.recorder.take_delta())
        sent = [decode(TurnDelta, encode(delta)) for delta in self.deltas]
        assert_same(TrajectoryRecorder.replay(sent).trajectory(StopReason.LOST), self.recorder.trajectory(StopReason.LOST))


TestRecorder = RecorderMachine.TestCase
TestRecorder.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


def assert_same(a: Trajectory, b: Trajectory) -> None:
    """Equal, arrays bit for bit."""
    assert encode(a) == encode(b)


def test_the_loss_can_leave_out_what_was_sampled_but_not_the_other_way() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2])
    recorder.add_call(a_result([3, 4], [-0.1, -0.2], ["v"]), a_turn(), train=False)

    (segment,) = recorder.trajectory(StopReason.TOKENS).segments

    assert (segment.sampled_mask.tolist(), segment.loss_mask.tolist()) == ([0, 0, 1, 1], [0, 0, 0, 0])


def test_a_turn_of_two_calls_has_one_span_of_tokens_for_one_version() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1])
    recorder.add_call(a_result([3, 4], [-0.1, -0.2], ["a"]), a_turn(0))
    recorder.add_call(a_result([5], [-0.3], ["a"]), a_turn(1))

    (segment,) = recorder.trajectory(StopReason.FINISHED).segments

    assert [(span.version, span.start, span.end) for span in segment.versions] == [("a", 1, 4)]
    assert list(recorder.turn_places) == [(1, 4)]


@given(st.data())
def test_a_missing_or_doubled_delta_is_noticed(data: st.DataObject) -> None:
    recorder = TrajectoryRecorder()
    deltas = []
    for turn in range(4):
        recorder.add_prompt([*recorder.ids, turn])
        recorder.add_call(a_result([7], [-0.5], ["v"]), a_turn(turn))
        deltas.append(recorder.take_delta())
    at = data.draw(st.integers(0, 3))
    wrong = data.draw(st.sampled_from([deltas[:at] + deltas[at + 1 :] if at < 3 else deltas[1:], deltas[: at + 1] + deltas[at:]]))

    with pytest.raises(ValueError, match="expected delta"):
        TrajectoryRecorder.replay(wrong)


def test_an_empty_recorder_is_an_empty_trajectory() -> None:
    assert TrajectoryRecorder().trajectory(StopReason.TIME).segments == ()
