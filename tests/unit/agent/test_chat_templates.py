"""What the public templates write, as transformers renders them, our renderers and the scripted server's templates write, too.

`chat_templates/expected.json` has the texts; `chat_templates/make.py` says how they were made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.messages import ChatMessage
from tests.unit.agent.families import LLAMA3, tokenizer_with
from workers.agent.renderers import THINKING_DROPPED, ChatMLRenderer, Llama3Renderer, Renderer
from workers.llm.scripted.chat_template import QWEN_SYSTEM, TemplateName, render_chat
from workers.llm.tokenizer import load

EXPECTED = json.loads((Path(__file__).parent / "chat_templates/expected.json").read_text(encoding="utf-8"))
TEMPLATES: dict[str, TemplateName] = {"qwen3": "qwen3", "qwen2_5": "qwen2.5", "llama3_1": "llama3"}
CASES = [pytest.param(family, case, id=f"{family}: {case['name']}") for family, cases in EXPECTED.items() for case in cases]


def messages_of(shown: list[dict[str, Any]]) -> list[ChatMessage]:
    return [ChatMessage(role=message["role"], content=message["content"]) for message in shown]


def renderer_for_case(family: str, kwargs: dict[str, Any]) -> Renderer:
    if family == "llama3_1":
        return Llama3Renderer(tokenizer_with(*LLAMA3), **kwargs)
    if family == "qwen2_5":
        return ChatMLRenderer(load(), default_system=QWEN_SYSTEM)
    return ChatMLRenderer(load(), thinking="free" if kwargs.get("enable_thinking", True) else "off", keep_thinking=False)


@pytest.mark.parametrize(("family", "case"), CASES)
def test_a_dialogue_that_grows_turn_by_turn_is_the_template_s_own_text(family: str, case: dict[str, Any]) -> None:
    """With thoughts dropped, since Qwen3's template drops them; where none are dropped the prompts only grow."""
    renderer = renderer_for_case(family, case.get("kwargs", {}))
    tokenizer = renderer.tokenizer

    ids = renderer.first_prompt(messages_of(case["first"]), case.get("tools", ())).ids
    turns: list[tuple[int, int]] = []
    for turn in case.get("turns", ()):
        start = len(ids)
        ids = [*ids, *tokenizer.encode_template(turn["spoken"]), renderer.stop_token_ids[0]]
        turns.append((start, len(ids)))
        prompt = renderer.next_prompt(ids, turns, messages_of(turn["replies"]))
        assert prompt.began in ("", THINKING_DROPPED)
        assert prompt.began or prompt.ids[: len(ids)] == ids
        ids = prompt.ids

    assert tokenizer.decode(ids) == case["text"]
    assert ids == tokenizer.encode_template(case["text"])


@pytest.mark.parametrize(("family", "case"), CASES)
def test_the_scripted_server_s_templates_are_the_public_ones(family: str, case: dict[str, Any]) -> None:
    messages = list(case["first"])
    for turn in case.get("turns", ()):
        messages += [turn["message"], *turn["replies"]]

    assert render_chat(messages, case.get("tools", ()), template=TEMPLATES[family], kwargs=case.get("kwargs")) == case["text"]
