"""Promise 5 through the agent loop for every family: whatever a model samples and a tool answers, thoughts kept or dropped, a trajectory
keeps its promises, each prompt is the record before it, and the journal put together is the trajectory."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.messages import ChatMessage, Limits, Sampling
from pipeline.testing.builders import a_job, a_template
from tests.integration.agent.dialogues import Echo, assert_same_bits
from tests.unit.agent.families import PACKAGE_TOKENS, renderer_of
from workers.agent import AgentSettings, PackageRenderer, RetryPolicy, TrajectoryRecorder, TurnDelta, broken_promises, run_agent
from workers.agent.renderers import THINKING_DROPPED, ChatMLRenderer, Renderer
from workers.llm.scripted import InProcessBackend
from workers.tools.base import ToolSet

FAMILIES = [
    "chatml",
    "llama3",
    *(
        pytest.param(
            name, marks=pytest.mark.skipif(importlib.util.find_spec("renderers") is None, reason="rollstream[renderers] is not there")
        )
        for name in PACKAGE_TOKENS
    ),
]
CALLS = (
    '<tool_call>{"name": "echo", "arguments": {"text": "x"}}</tool_call>',
    '{"name": "echo", "parameters": {"text": "é"}}',
    '<tool_call>{"name": "echo", "arguments": {"text": NaN}}</tool_call>',
    '<tool_call>{"name": "echo", "argu',
    "<think>hm</think>",
    "<think>",
    "</think>",
    "🪿",
    "turn",
)
PIECES = st.tuples(st.sampled_from(CALLS) | st.integers(0, 10**6), st.booleans())
"""A text, or a number that names a token; and whether a text's tags are tokens."""
TURNS = st.lists(st.tuples(st.lists(PIECES, min_size=1, max_size=5), st.integers(-1, 3)), min_size=1, max_size=4)
"""What is said, and the end token; -1 = it is cut off."""
ANSWERS = st.lists(
    st.lists(st.sampled_from(["x", "\n", "\ufdd0", "\ud800", "turn", "model"]) | st.integers(0, 99), max_size=4), min_size=1, max_size=3
)
"""Texts, and numbers that name tokens to be spelt out."""
SAMPLED = 24


def spoken(renderer: Renderer, pieces: Sequence[tuple[str | int, bool]], end: int) -> list[int]:
    """Ids of a turn; its end token stands nowhere but at its end."""
    tokenizer = renderer.tokenizer
    ids: list[int] = []
    for piece, means_markup in pieces:
        if isinstance(piece, int):
            ids.append(piece % tokenizer.vocab_size)
        else:
            ids += tokenizer.encode_template(piece) if means_markup else tokenizer.encode(piece)
    ids = [id_ for id_ in ids if id_ not in renderer.stop_token_ids] or [5]
    return ids * SAMPLED if end < 0 else [*ids, renderer.stop_token_ids[end % len(renderer.stop_token_ids)]]


def text_of(renderer: Renderer, pieces: Sequence[str | int]) -> str:
    names = sorted(renderer.tokenizer.specials)
    return "".join(names[piece % len(names)] if isinstance(piece, int) else piece for piece in pieces)


def renderer_for(family: str, *, keep_thinking: bool) -> Renderer:
    renderer = renderer_of(family)
    if keep_thinking:
        return renderer
    if family == "chatml":
        return ChatMLRenderer(renderer.tokenizer, keep_thinking=False)
    return PackageRenderer(renderer.tokenizer, family, keep_thinking=False)


@pytest.mark.parametrize("keep_thinking", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(turns=TURNS, answers=ANSWERS, context=st.sampled_from([500, 30_000]))
async def test_a_dialogue_keeps_its_promises_in_every_family(
    family: str, keep_thinking: bool, turns: list[tuple[list[tuple[str | int, bool]], int]], answers: list[list[str | int]], context: int
) -> None:
    renderer = renderer_for(family, keep_thinking=keep_thinking or family == "llama3")  # which has none
    backend = InProcessBackend([spoken(renderer, *turn) for turn in turns], tokenizer=renderer.tokenizer)
    recorder, journal = TrajectoryRecorder(), list[TurnDelta]()
    limits = Limits(max_turns=len(turns), run_active_s=60.0, max_sampled_tokens=10**6, max_context_tokens=context)

    async def gate() -> None:
        pass

    async def note(delta: TurnDelta) -> None:
        journal.append(codec.decode(TurnDelta, codec.encode(delta)))

    end = await run_agent(
        replace(a_job(), template=a_template(limits=limits, sampling=Sampling(max_tokens=SAMPLED))),
        [ChatMessage(role="user", content=text_of(renderer, answers[0]))],
        backend=backend,
        renderer=renderer,
        tools=ToolSet([Echo([text_of(renderer, answer) for answer in answers])]),
        recorder=recorder,
        gate=gate,
        journal=note,
        settings=AgentSettings(continue_after_length=True, retry=RetryPolicy(tries=1)),
    )

    trajectory = recorder.trajectory(end.stop)
    assert broken_promises(trajectory) == []
    for request, turn in zip(backend.requests, trajectory.turns, strict=True):
        assert list(request.prompt_ids) == trajectory.segments[turn.segment].token_ids[: turn.start].tolist()
    assert {segment.began for segment in trajectory.segments[1:]} <= (set() if keep_thinking else {THINKING_DROPPED})
    if trajectory.turns:
        assert_same_bits(TrajectoryRecorder.replay(journal).trajectory(end.stop), trajectory)
