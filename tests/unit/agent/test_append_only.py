"""Promise 5 for every family: whatever was said and answered, the next prompt begins with the ids before it, or says why not."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.messages import ChatMessage, Json
from tests.unit.agent.families import LLAMA3, PACKAGE_TOKENS, renderer_of, tokenizer_with
from workers.agent.renderers import ChatMLRenderer, Llama3Renderer, Renderer, first_difference, tool_schema
from workers.llm.tokenizer import load

FAMILIES = [
    "chatml",
    "llama3",
    *(
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                importlib.util.find_spec("renderers") is None, reason="the extra rollstream[renderers] is not installed"
            ),
        )
        for name in PACKAGE_TOKENS
    ),
]
TOOLS = [tool_schema("python", {"type": "object", "properties": {"code": {"type": "string"}}}, "Run code.")]
PARAMETERS: dict[str, Json] = {"python": {"type": "object", "properties": {"code": {"type": "string"}}}}
CONTROL = [
    "<|im_end|>\n<|im_start|>user\n",
    "<|eot_id|>",
    "<|user|>",
    "<|observation|>",
    "[gMASK]",
    "<tool_response>",
    "</think>",
    "\ufdd0",
]
TEXTS = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(CONTROL), st.just("\n\n")), max_size=4).map("".join)
REPLIES = st.one_of(
    st.lists(st.builds(ChatMessage, role=st.just("tool"), content=TEXTS), min_size=1, max_size=3),
    st.lists(st.builds(ChatMessage, role=st.just("user"), content=TEXTS), min_size=1, max_size=2),
)
MARKUP = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "python\n",
            '{"name": "python", "arguments": {"code": "1"}}',
            "<arg_key>",
            "é",
        ]
    ),
    max_size=5,
)
ROUNDS = st.lists(
    st.tuples(st.lists(st.floats(0, 1, exclude_max=True), max_size=10), MARKUP, st.integers(-1, 2), REPLIES), min_size=1, max_size=4
)
"""Turns: tokens as shares of the vocabulary, markup, which end token, what is answered."""


def play(renderer: Renderer, rounds: Sequence[tuple[Sequence[float], Sequence[str], int, Sequence[ChatMessage]]]) -> list[str]:
    """A dialogue; why each segment but the first began."""
    tokenizer = renderer.tokenizer
    ids = list(renderer.first_prompt([ChatMessage(role="user", content="Hi")], TOOLS).ids)
    turns: list[tuple[int, int]] = []
    began: list[str] = []
    for shares, markup, end, replies in rounds:
        said = [int(share * tokenizer.vocab_size) for share in shares] + tokenizer.encode_template("".join(markup))
        said += [renderer.stop_token_ids[end % len(renderer.stop_token_ids)]] if end >= 0 else []
        if not said:
            continue
        turns.append((len(ids), len(ids) + len(said)))
        ids += said

        parsed = renderer.parse(said, renderer.turn_text(said), finish="stop" if end >= 0 else "length", tools=PARAMETERS, in_thought=None)
        assert all(call.name in PARAMETERS for call in parsed.calls)

        prompt = renderer.next_prompt(ids, turns, replies)

        assert prompt.began or first_difference(ids, prompt.ids) is None
        assert not prompt.began or first_difference(ids, prompt.ids) is not None, "a segment begins without need"
        if prompt.began:
            began.append(prompt.began)
            turns = []
        ids = list(prompt.ids)
    return began


@pytest.mark.parametrize("family", FAMILIES)
def test_promise_5_a_prompt_begins_with_every_id_before_it(family: str) -> None:
    renderer = renderer_of(family)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(ROUNDS)
    def holds(rounds: list[tuple[list[float], list[str], int, list[ChatMessage]]]) -> None:
        began = play(renderer, rounds)
        assert began == []

    holds()


@given(ROUNDS)
def test_with_thoughts_dropped_each_break_says_so(rounds: list[tuple[list[float], list[str], int, list[ChatMessage]]]) -> None:
    assert set(play(ChatMLRenderer(load(), thinking="open", keep_thinking=False), rounds)) <= {"thinking_dropped"}


@given(st.lists(st.builds(ChatMessage, role=st.sampled_from(["user", "tool"]), content=TEXTS), min_size=1, max_size=3))
def test_no_message_can_spell_the_frame_of_a_dialogue(messages: list[ChatMessage]) -> None:
    renderer = Llama3Renderer(tokenizer_with(*LLAMA3))
    first = renderer.first_prompt([ChatMessage(role="user", content="Hi")], []).ids
    end = renderer.stop_token_ids[0]

    added = renderer.next_prompt([*first, end], [(len(first), len(first) + 1)], messages).ids[len(first) + 1 :]

    assert added.count(end) == len(messages)
    assert added.count(renderer.tokenizer.special("<|start_header_id|>")) == len(messages) + 1
