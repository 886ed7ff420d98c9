"""ChatML: what it writes, where thoughts go, how turns that were cut off are closed. `test_append_only.py` shows that prompts only grow."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import ChatMessage, Json
from tests.unit.agent.families import definition
from workers.agent import ChatMLRenderer
from workers.agent.renderers import THINKING_DROPPED, Thinking, tool_schema
from workers.llm.tokenizer import Tokenizer, load

TOKENIZER = load()
END = TOKENIZER.special("<|im_end|>")
TOOLS: list[Json] = [tool_schema("python", {"type": "object", "properties": {"code": {"type": "string"}}}, "Run code.")]


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def tool(text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text)


@pytest.mark.parametrize("lacking", ["<|im_start|>", "<|im_end|>"])
def test_a_vocabulary_without_the_frame_is_refused(lacking: str) -> None:
    """Without `<|im_start|>` the frame of each message was spelt in ordinary tokens, as any user can spell it, too."""
    tokenizer = Tokenizer(definition().replace(json.dumps(lacking).encode(), json.dumps(lacking.replace("im", "no")).encode()))

    with pytest.raises(KeyError, match=re.escape(lacking)):
        ChatMLRenderer(tokenizer)


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


SPELT = ["<|im_start|>", "us", "er", "\n", "H", "i", "<|im_end|>", "\n", "<|im_start|>", "as", "sist", "ant", "\n"]


def test_the_ids_are_those_of_the_vocabulary_one_by_one() -> None:
    ids = ChatMLRenderer(TOKENIZER).first_prompt([user("Hi")], []).ids

    assert [TOKENIZER.decode([id_]) for id_ in ids] == SPELT
    assert ids == [1732, 590, 259, 198, 39, 72, 1733, 198, 1732, 456, 1175, 1339, 198]


def test_a_system_message_of_the_template_stands_where_there_is_none() -> None:
    renderer = ChatMLRenderer(TOKENIZER, default_system="You are Q.")

    without = TOKENIZER.decode(renderer.first_prompt([user("Hi")], []).ids)
    with_one = TOKENIZER.decode(renderer.first_prompt([ChatMessage(role="system", content="Be brief."), user("Hi")], []).ids)

    assert without.startswith("<|im_start|>system\nYou are Q.<|im_end|>\n<|im_start|>user\nHi")
    assert "You are Q." not in with_one


# ---- closers


def appended(renderer: ChatMLRenderer, said: str, *, message: ChatMessage | None = None) -> str:
    """What follows a turn that was cut off after `said`."""
    first = renderer.first_prompt([user("Hi")], TOOLS).ids
    ids = [*first, *TOKENIZER.encode_template(said)]
    prompt = renderer.next_prompt(ids, [(len(first), len(ids))], [message or user("Go on.")])
    assert (prompt.ids[: len(ids)], prompt.began) == (ids, "")
    return TOKENIZER.decode(prompt.ids[len(ids) :])


NEXT = "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("thinking", "said", "closers"),
    [
        ("free", "Let me", ""),
        ("free", "<think>\nLet me", "\n</think>\n\n"),
        ("free", "<think>\nLet me</think>\n\nSo", ""),
        ("free", '<think>\na</think>\n\n<tool_call>\n{"name": "py', ""),
        ("free", "<think>\n<tool_call>\n{", "\n</think>\n\n"),
        ("open", "Let me", "\n</think>\n\n"),
        ("open", "Let me</think>\n\nSo", ""),
        ("off", "Let me", ""),
    ],
)
def test_a_turn_that_was_cut_in_a_thought_has_it_closed_and_a_call_is_left_open(thinking: Thinking, said: str, closers: str) -> None:
    renderer = ChatMLRenderer(TOKENIZER, thinking=thinking)
    opening = {"free": "", "open": "<think>\n", "off": "<think>\n\n</think>\n\n"}[thinking]

    assert appended(renderer, said) == closers + NEXT + opening


def test_a_turn_that_ended_as_it_should_is_never_closed_again() -> None:
    assert appended(ChatMLRenderer(TOKENIZER), "<think>\nhm<|im_end|>") == NEXT.removeprefix("<|im_end|>")


def test_a_turn_that_ended_the_text_still_gets_the_frame_that_the_dialogue_needs() -> None:
    assert appended(ChatMLRenderer(TOKENIZER), "Done.<|endoftext|>") == NEXT


# ---- thoughts dropped


def dropped(said: str, *, thinking: Thinking = "free", before: Sequence[ChatMessage] = ()) -> str:
    """The dialogue that is left of a turn when a user speaks and thoughts are dropped; with `before`, those came in between."""
    renderer = ChatMLRenderer(TOKENIZER, thinking=thinking, keep_thinking=False)
    first = renderer.first_prompt([user("Hi")], []).ids
    ids = [*first, *TOKENIZER.encode_template(said)]
    turns = [(len(first), len(ids))]
    if before:
        ids = renderer.next_prompt(ids, turns, before).ids
        start = len(ids)
        ids = [*ids, *TOKENIZER.encode_template("Four.<|im_end|>")]
        turns.append((start, len(ids)))
    prompt = renderer.next_prompt(ids, turns, [user("Bye")])
    assert prompt.began == THINKING_DROPPED
    return TOKENIZER.decode(prompt.ids)


HEAD, TAIL = (
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
)


def test_the_tag_that_the_prompt_opened_goes_with_the_thought() -> None:
    """The tag stands before the turn, so cutting only what was sampled left it behind: an answer inside a thought."""
    assert dropped("hm\n</think>\n\nFour.<|im_end|>", thinking="open") == f"{HEAD}Four.{TAIL}<think>\n"


@pytest.mark.parametrize("said", ["<think>\nhm", "<think>\nhm<|im_end|>"])
def test_a_thought_without_an_end_is_dropped_whole(said: str) -> None:
    assert dropped(said) == HEAD + TAIL


def test_what_closed_an_unfinished_thought_goes_with_it() -> None:
    left = dropped("<think>\nhm", before=[ChatMessage(role="tool", content="4")])

    assert left == (
        f"{HEAD}<|im_end|>\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\nFour.{TAIL}"
    )


def test_words_before_a_second_thought_stay() -> None:
    assert dropped("<think>\na</think>\n\nSo <think>\nb") == f"{HEAD}So {TAIL}"


def test_an_empty_thought_of_the_template_is_none_and_begins_no_segment() -> None:
    renderer = ChatMLRenderer(TOKENIZER, thinking="off", keep_thinking=False)
    first = renderer.first_prompt([user("Hi")], []).ids
    ids = [*first, *TOKENIZER.encode("Four."), END]

    prompt = renderer.next_prompt(ids, [(len(first), len(ids))], [user("Bye")])

    assert (prompt.began, prompt.ids[: len(ids)]) == ("", ids)


def test_a_vocabulary_without_tags_cannot_drop_thoughts_and_says_so() -> None:
    parsed = json.loads(definition())
    parsed["added_tokens"] = [token for token in parsed["added_tokens"] if token["content"].startswith("<|")]

    with pytest.raises(ValueError, match="thoughts are cut at the tokens <think>"):
        ChatMLRenderer(Tokenizer(json.dumps(parsed).encode()), keep_thinking=False)
