"""A turn that an engine interrupts anywhere, as often as it likes, is the turn that it would have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import codec
from pipeline.engines import Overlong
from pipeline.messages import ChatMessage, Limits, Sampling, StopReason
from pipeline.testing.builders import a_job, a_template
from tests.integration.agent.dialogues import END, ENDS, TEXTS, TOKENIZER, Echo, assert_same_bits
from workers.agent import AgentEnd, AgentSettings, ChatMLRenderer, RetryPolicy, TrajectoryRecorder, TurnDelta, broken_promises, run_agent
from workers.llm import GenRequest, GenResult, Span
from workers.llm.backend import Finish
from workers.llm.scripted import InProcessBackend
from workers.tools.base import ToolSet

LINES = (
    '<think>hm</think>\n\n<tool_call>\n{"name": "echo", "arguments": {"text": "é🪿"}}\n</tool_call>',
    '<tool_call>\n{"name": "echo", "argu',
    "<think>and so",
    "Four 🪿🪿.",
    "",
)
"""Turns that call, that call wrongly, that end in a thought, that answer, and that say nothing."""
TURNS = st.lists(st.sampled_from(LINES), min_size=1, max_size=4)
PLACES = st.lists(st.integers(0, 60), max_size=6)
"""Tokens of a turn before which it is interrupted; those beyond its end are at its end, behind the end token."""


class Interrupting(InProcessBackend):
    """An engine that says given turns, each in pieces, and ends all pieces but the last of a turn by an abort."""

    def __init__(self, turns: Sequence[str], cuts: Sequence[Sequence[int]], *, last: Finish = "stop") -> None:
        super().__init__()
        self._pieces: list[tuple[list[int], Finish]] = []
        for text, places in zip(turns, cuts, strict=True):
            ids = [*TOKENIZER.encode_template(text), END]
            edges = sorted({0, len(ids), *(min(place, len(ids)) for place in places)})
            self._pieces += [([], "abort")] * sum(place == 0 for place in places)
            parts: list[tuple[list[int], Finish]] = [(ids[a:b], "abort") for a, b in pairwise(edges)]
            if not any(place >= len(ids) for place in places):
                parts[-1] = (parts[-1][0], last)
            self._pieces += parts

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """The next piece, from other weights than the one before."""
        self.requests.append(request)
        ids, finish = self._pieces.pop(0)
        return GenResult(
            output_ids=ids,
            logprobs=[-0.5] * len(ids),
            finish=finish,
            stop_reason=None,
            spans=(Span(version=f"1.{len(self.requests)}", start=0, end=len(ids)),) if ids else (),
            version_source="spans",
            version_after="",
            cached_tokens=None,
            logprobs_mode="processed",
            server="s",
            server_request_id=request.request_id,
            seconds=0.0,
        )


@dataclass
class Held:
    """One run of the loop."""

    backend: InProcessBackend
    answer: str
    recorder: TrajectoryRecorder = field(default_factory=TrajectoryRecorder)
    journal: list[TurnDelta] = field(default_factory=list)

    async def run(self, n_turns: int) -> AgentEnd:
        async def gate() -> None:
            pass

        async def note(delta: TurnDelta) -> None:
            self.journal.append(codec.decode(TurnDelta, codec.encode(delta)))

        limits = Limits(max_turns=n_turns, run_active_s=60.0, max_sampled_tokens=10**6, max_context_tokens=32_768)
        return await run_agent(
            replace(a_job(), template=a_template(limits=limits, sampling=Sampling(max_tokens=256))),
            [ChatMessage(role="user", content="Hi")],
            backend=self.backend,
            renderer=ChatMLRenderer(TOKENIZER),
            tools=ToolSet([Echo([self.answer])]),
            recorder=self.recorder,
            gate=gate,
            journal=note,
            settings=AgentSettings(retry=RetryPolicy(tries=1, delay_s=0.0)),
        )


@given(TURNS, st.data(), TEXTS)
async def test_a_turn_in_pieces_is_the_turn_it_would_have_been(turns: list[str], data: st.DataObject, answer: str) -> None:
    """An abort, or the end of the budget, that meets the end token itself was taken for a turn that goes on: SGLang looks for both before
    it looks for end tokens. What the model then sampled behind the end of its turn was graded as its answer, and a last budget's token that
    ended a good answer made it one that was cut off."""
    cuts = [data.draw(PLACES) for _ in turns]
    whole = Held(Interrupting(turns, [[] for _ in turns]), answer)
    pieces = Held(Interrupting(turns, cuts, last=data.draw(st.sampled_from(["stop", "length"]))), answer)

    end = await whole.run(len(turns))
    assert await pieces.run(len(turns)) == end

    one, other = whole.recorder.trajectory(end.stop), pieces.recorder.trajectory(end.stop)
    assert broken_promises(one) == broken_promises(other) == []
    assert [segment.token_ids.tolist() for segment in one.segments] == [segment.token_ids.tolist() for segment in other.segments]
    assert one.segments[0].sampled_mask.tolist() == other.segments[0].sampled_mask.tolist()
    assert one.messages == other.messages
    for request, turn in zip((r for r in pieces.backend.requests if _sampled(pieces, r)), other.turns, strict=True):
        assert list(request.prompt_ids) == other.segments[turn.segment].token_ids[: turn.start].tolist()
        assert request.prompt_ids[-1] not in ENDS, "a call that goes on behind the end of a turn"
    assert_same_bits(TrajectoryRecorder.replay(pieces.journal).trajectory(end.stop), other)


def _sampled(held: Held, request: GenRequest) -> bool:
    return any(turn.request_id == request.request_id for turn in held.recorder.turns)


@pytest.mark.parametrize("room", [0, 3])
async def test_a_turn_whose_rest_fits_no_server_is_answered_as_far_as_it_came(room: int) -> None:
    """Its server was drained, and the next one has a smaller context: what the turn had said was in the record, but neither in the dialogue
    nor in the answer, and its journal was not written."""

    class Smaller(Interrupting):
        async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
            if len(self.requests) == 1:
                raise Overlong(len(request.prompt_ids), room)
            return await super().generate(request, timeout_s=timeout_s)

    held = Held(Smaller(["Four and more."], [[4]]), "")

    end = await held.run(1)

    assert (end.stop, end.answer) == (StopReason.CONTEXT, TOKENIZER.decode(TOKENIZER.encode("Four and more.")[:4]))
    assert held.recorder.trajectory(end.stop).messages[-1].content == end.answer
    assert_same_bits(TrajectoryRecorder.replay(held.journal).trajectory(end.stop), held.recorder.trajectory(end.stop))
