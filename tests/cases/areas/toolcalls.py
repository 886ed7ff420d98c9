"""Cases of tool calls: a turn is sampled at a scripted server, read by the product, and its calls are run and its faults told by the loop.

What the reader finds must be what the case expects, and what the loop does must be what the reader found.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast, get_args

from pipeline.messages import Json
from tests.cases.areas.dictating import ASKED, Desk, act, desk, recorded
from tests.cases.areas.vocabularies import support, vocabulary
from tests.cases.case import BadCase, Case, Check, Difference, text_of
from workers.agent import ChatMLRenderer, ParsedTurn, ToolCall
from workers.agent.loop import MAX_CALLS_A_TURN
from workers.agent.tool_calls import Format
from workers.llm import chatml
from workers.llm.tokenizer import Tokenizer
from workers.tools.base import ToolResult, ToolSet


class NotingTool:
    """A tool of a case; it notes the calls it got."""

    def __init__(self, schema: Json, noted: list[ToolCall]) -> None:
        function = cast("dict[str, Any]", schema["function"])
        self.name = str(function["name"])
        self.description = str(function.get("description", ""))
        self.parameters: Json = function["parameters"]
        self._noted = noted

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        self._noted.append(ToolCall(self.name, dict(arguments)))
        return ToolResult(text="ok")


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """One server for all cases; it starts with the first."""
    async with desk() as shared:

        async def check(case: Case) -> list[Difference]:
            return await _check(case, shared)

        yield check


async def _check(case: Case, at: Desk) -> list[Difference]:
    format_ = case.input.get("format")
    if format_ not in get_args(Format):
        raise BadCase(f"no format {format_!r}; there are: {', '.join(get_args(Format))}")
    tokenizer, was_cut = vocabulary("own"), case.input.get("finish_reason") == "length"
    renderer = ChatMLRenderer(tokenizer, tool_format=cast("Format", format_), thinking="open" if _opened_in_prompt(case) else "free")
    noted: list[ToolCall] = []
    tools = ToolSet(NotingTool(schema, noted) for schema in _schemas(case))
    ids = _spelt(tokenizer, text_of(case.input, "text"), as_text=case.input.get("spelt_as") == "text")
    said = ids if was_cut else [*ids, tokenizer.special(chatml.CLOSE)]

    model = await at.model("own")
    model.dictate(said)
    _, recorder = await act(model, renderer, max_tokens=max(1, len(said)), tools=list(tools), max_turns=1, continue_after_length=True)
    trajectory = recorded(recorder)
    parsed = renderer.parse(
        said,
        trajectory.messages[len(ASKED)].content,
        finish=trajectory.turns[0].finish,
        tools=tools.parameters(),
        in_thought=renderer.first_prompt(ASKED, ()).in_thought,
    )

    alternatives = case.expect.get("any_of") or [case.expect]
    found = min((_differences(wanted, parsed) for wanted in alternatives), key=len)
    told = [message.content for message in trajectory.messages if message.role == "tool"]
    return found + _not_done(parsed, tools, noted, told)


def _differences(wanted: Mapping[str, Any], parsed: ParsedTurn) -> list[Difference]:
    """What the reader found, against one of the outcomes that are right."""
    different = []
    calls = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
    if json.dumps(calls, sort_keys=True) != json.dumps(wanted["calls"], sort_keys=True):  # 1 is not True
        different.append(Difference("calls", wanted["calls"], calls))
    if len(parsed.errors) != wanted["errors"]:
        different.append(Difference("errors", wanted["errors"], [f"{error.fault}: {error.message}" for error in parsed.errors]))
    if "content" in wanted and parsed.content != wanted["content"]:
        different.append(Difference("content", wanted["content"], parsed.content))
    if "thought" in wanted and parsed.thought != wanted["thought"]:
        different.append(Difference("thought", wanted["thought"], parsed.thought))
    if "reason" in wanted and [error.fault for error in parsed.errors[:1]] != [wanted["reason"]]:
        different.append(Difference("reason", wanted["reason"], [error.fault for error in parsed.errors]))
    return different


def _not_done(parsed: ParsedTurn, tools: ToolSet, noted: list[ToolCall], told: list[str]) -> list[Difference]:
    """What the loop did not do of what the reader found: every call run in order, every fault and every wrong argument told."""
    answered = parsed.items[:MAX_CALLS_A_TURN]
    fine = [item for item in answered if isinstance(item, ToolCall) and not tools.complaint(item.name, item.arguments)]
    different = []
    if noted != fine:
        different.append(Difference("calls that were run", [str(call) for call in fine], [str(call) for call in noted]))
    errors = [text for text in told if text.startswith("error:")]
    expected = len(answered) - len(fine) + (len(parsed.items) > len(answered))
    if len(errors) != expected or len(told) != len(fine) + expected:
        different.append(Difference("answers to the model", f"{len(fine)} results, {expected} errors", told))
    return different


def _schemas(case: Case) -> list[Json]:
    return cast("list[Json]", support()[case.input["tools_ref"]] if "tools_ref" in case.input else case.input.get("tools", []))


def _opened_in_prompt(case: Case) -> bool:
    """Whether the template had opened a thought; some cases say so in their note."""
    ends_with = case.input.get("prompt_ends_with") or json.loads(case.raw or "{}").get("note", "").partition("prompt_ends_with:")[2]
    return str(chatml.THINK_OPEN) in str(ends_with)


def _spelt(tokenizer: Tokenizer, text: str, *, as_text: bool) -> list[int]:
    """Ids of a text as a model says it: markup as tokens of its own, unless it is to be ordinary text or spells a control token."""
    as_text = as_text or "<|im_" in text or "<|endoftext|>" in text
    return tokenizer.encode(text) if as_text else tokenizer.encode_template(text)
