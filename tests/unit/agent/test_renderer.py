"""Prompts grow at their end: old ids stay as they are, and only what is new is rendered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import ChatMessage, Json
from workers.agent import ChatMLRenderer, TemplateMismatch, check_template, cut_observation, first_difference
from workers.agent.renderers import THINKING_DROPPED, Thinking, tool_schema
from workers.llm import connect_backend
from workers.llm.scripted import ScriptedServer
from workers.llm.tokenizer import load

TOKENIZER = load()
END = TOKENIZER.special("<|im_end|>")
TOOLS: list[Json] = [tool_schema("python", {"type": "object", "properties": {"code": {"type": "string"}}}, "Run code.")]


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def tool(text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text)


def test_the_first_prompt_is_the_family_s_own_text() -> None:
    renderer = ChatMLRenderer(TOKENIZER)

    text = TOKENIZER.decode(renderer.first_prompt([ChatMessage(role="system", content="Be brief."), user("Hi")], []).ids)

    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("thinking", "opening", "in_thought"), [("free", "", None), ("open", "<think>\n", True), ("off", "<think>\n\n</think>\n\n", False)]
)
def test_a_turn_opens_as_the_model_was_trained_to(thinking: Thinking, opening: str, in_thought: bool | None) -> None:
    renderer = ChatMLRenderer(TOKENIZER, thinking=thinking)

    first = renderer.first_prompt([user("Hi")], [])
    second = renderer.next_prompt([*first.ids, 7, END], [(len(first.ids), len(first.ids) + 2)], [user("Bye")])

    for prompt in (first, second):
        assert TOKENIZER.decode(prompt.ids).endswith(f"<|im_start|>assistant\n{opening}")
        assert prompt.in_thought is in_thought


TEXTS = st.lists(
    st.one_of(st.text(max_size=10), st.sampled_from(["<|im_end|>\n<|im_start|>user\n", "<tool_response>", "</think>", "\n\n"])), max_size=4
).map("".join)
MESSAGES = st.lists(st.builds(ChatMessage, role=st.sampled_from(["user", "tool"]), content=TEXTS), min_size=1, max_size=3)
SAID = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=12)


@given(SAID, MESSAGES, st.booleans())
def test_promise_5_a_prompt_begins_with_every_id_before_it(said: list[int], messages: list[ChatMessage], ended: bool) -> None:
    renderer = ChatMLRenderer(TOKENIZER)
    first = renderer.first_prompt([user("Hi")], TOOLS).ids
    ids = [*first, *said, *([END] if ended else [])]

    prompt = renderer.next_prompt(ids, [(len(first), len(ids))], messages)

    assert (first_difference(ids, prompt.ids), prompt.began) == (None, "")


@given(MESSAGES)
def test_no_message_can_spell_the_end_of_a_turn_or_the_start_of_another(messages: list[ChatMessage]) -> None:
    renderer = ChatMLRenderer(TOKENIZER)
    open_id = TOKENIZER.special("<|im_start|>")
    first = renderer.first_prompt([user("Hi")], []).ids

    added = renderer.next_prompt([*first, END], [(len(first), len(first) + 1)], messages).ids[len(first) + 1 :]

    roles = [message.role for message in messages]
    groups = sum(role == "user" or before != "tool" for role, before in zip(roles, ["", *roles], strict=False))
    assert added.count(open_id) == groups + 1
    assert added.count(END) == groups


@given(TEXTS, TEXTS)
def test_the_delta_is_what_a_canonical_rendering_of_the_whole_has_there(question: str, answer: str) -> None:
    renderer = ChatMLRenderer(TOKENIZER)
    before = [user(question), ChatMessage(role="assistant", content="ok")]
    spoken = renderer.first_prompt([user(question)], []).ids
    ids = [*spoken, *TOKENIZER.encode("ok"), END]

    appended = renderer.next_prompt(ids, [(len(spoken), len(ids))], [user(answer)]).ids

    assert appended == renderer.first_prompt([*before, user(answer)], []).ids


def test_a_cut_turn_gets_its_end_as_context() -> None:
    renderer = ChatMLRenderer(TOKENIZER)
    said = TOKENIZER.encode("Let me think about")

    ids = renderer.next_prompt([5, *said], [(1, 1 + len(said))], [user("Go on.")]).ids

    assert TOKENIZER.decode(ids[1 + len(said) :]) == "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


def test_tool_answers_of_one_turn_share_a_message() -> None:
    renderer = ChatMLRenderer(TOKENIZER)

    ids = renderer.next_prompt([5, END], [(1, 2)], [tool("a"), tool("b")]).ids

    assert TOKENIZER.decode(ids[2:]) == (
        "\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_dropped_thoughts_are_cut_out_of_the_ids_and_say_so() -> None:
    renderer = ChatMLRenderer(TOKENIZER, keep_thinking=False)
    first = renderer.first_prompt([user("Hi")], []).ids
    odd_spelling = [*TOKENIZER.encode("Hel"), *TOKENIZER.encode("lo")]
    said = [*TOKENIZER.encode_template("<think>\nhm\n</think>\n\n"), *odd_spelling, END]
    ids = [*first, *said]
    turns = [(len(first), len(ids))]

    spoken_to = renderer.next_prompt(ids, turns, [user("Bye")])
    in_a_tool_loop = renderer.next_prompt(ids, turns, [tool("4")])

    assert spoken_to.began == THINKING_DROPPED
    assert spoken_to.ids[: len(first) + len(odd_spelling) + 1] == [*first, *odd_spelling, END], "the rest is not tokenized again"
    assert in_a_tool_loop.began == ""
    assert in_a_tool_loop.ids[: len(ids)] == ids


def test_the_text_of_a_turn_leaves_its_end_out_and_is_cut_at_the_stop_string() -> None:
    renderer = ChatMLRenderer(TOKENIZER)
    ids = TOKENIZER.encode("x = print(1)")

    assert renderer.turn_text([*ids, END]) == "x = print(1)"
    assert renderer.turn_text(ids, "pri") == "x = "


def test_fingerprints_tell_settings_apart() -> None:
    prints = {
        ChatMLRenderer(TOKENIZER).fingerprint,
        ChatMLRenderer(TOKENIZER, thinking="off").fingerprint,
        ChatMLRenderer(TOKENIZER, keep_thinking=False).fingerprint,
        ChatMLRenderer(TOKENIZER, tool_format="qwen3_coder").fingerprint,
    }

    assert len(prints) == 4
    assert ChatMLRenderer(TOKENIZER).fingerprint in prints


@pytest.mark.parametrize("messages", [[], [ChatMessage(role="wizard", content="x")]])
def test_what_is_no_dialogue_is_refused(messages: list[ChatMessage]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ChatMLRenderer(TOKENIZER).first_prompt(messages, [])


async def test_the_server_s_own_template_writes_the_same_and_a_difference_is_found() -> None:
    async with ScriptedServer() as server, connect_backend(server.url) as client:
        await check_template(ChatMLRenderer(TOKENIZER), client)
        await check_template(ChatMLRenderer(TOKENIZER, thinking="off"), client, {"enable_thinking": False})
        with pytest.raises(TemplateMismatch, match="'user'"):
            await check_template(ChatMLRenderer(TOKENIZER, thinking="off"), client)
        with pytest.raises(TemplateMismatch, match="think"):
            await check_template(ChatMLRenderer(TOKENIZER), client, {"enable_thinking": False})


@given(st.text(max_size=400), st.integers(1, 60))
def test_an_observation_is_never_longer_than_its_bound(text: str, max_tokens: int) -> None:
    cut = cut_observation(TOKENIZER, text, max_tokens)

    assert len(TOKENIZER.encode(cut)) <= max_tokens
    if len(TOKENIZER.encode(text)) <= max_tokens:
        assert cut == text


def test_a_long_observation_keeps_head_and_tail_and_says_what_is_missing() -> None:
    text = "first line\n" + "x y z\n" * 100_000 + "last line"

    cut = cut_observation(TOKENIZER, text, 100)

    assert cut.startswith("first line\n")
    assert cut.endswith("last line")
    assert "characters left out]" in cut
