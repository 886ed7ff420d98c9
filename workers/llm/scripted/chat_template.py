"""The server's own chat templates: a dialogue as one text, as a server's Jinja template would write it.

    chatml    in the manner of Qwen's, earlier thoughts kept
    qwen3     as Qwen3's: thoughts before the last word of a user are dropped
    qwen2.5   as Qwen2.5's: a system message of its own where there is none
    llama3    as Llama 3.1's

Written apart from the client's renderers on purpose: the check at start compares the two. That these here are the public templates is
tested against what transformers renders of those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal

from workers.llm import chatml, llama3

Message = Mapping[str, object]
TemplateName = Literal["chatml", "qwen3", "qwen2.5", "llama3"]
QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def render_chat(
    messages: Sequence[Message],
    tools: Sequence[object],
    *,
    template: TemplateName = "chatml",
    add_generation_prompt: bool = True,
    kwargs: Mapping[str, object] | None = None,
) -> str:
    """The dialogue as text.

    Args:
        kwargs: switches, as templates take them: what one does not know it ignores.

    Raises:
        ValueError: a role this template does not know.
    """
    return TEMPLATES[template](messages, tools, add_generation_prompt, kwargs or {})


def _qwen3(messages: Sequence[Message], tools: Sequence[object], generate: bool, kwargs: Mapping[str, object]) -> str:
    last_query = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=len(messages) - 1)
    shown = [_without_thought(message) if at < last_query else message for at, message in enumerate(messages)]
    return _qwen(shown, tools, generate, kwargs)


def _qwen25(messages: Sequence[Message], tools: Sequence[object], generate: bool, kwargs: Mapping[str, object]) -> str:
    return _qwen(messages, tools, generate, {}, default_system=QWEN_SYSTEM)


def _qwen(
    messages: Sequence[Message], tools: Sequence[object], generate: bool, kwargs: Mapping[str, object], default_system: str | None = None
) -> str:
    rest = list(messages)
    system = _content(rest.pop(0)) if rest and rest[0].get("role") == "system" else default_system
    text = ""
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        lead = f"{system}\n\n" if system is not None else ""
        text += _block("system", lead + chatml.TOOLS_BEFORE + listed + chatml.TOOLS_AFTER)
    elif system is not None:
        text += _block("system", system)
    for role, run in groupby(rest, key=lambda message: message.get("role")):
        group = list(run)
        if role == "tool":
            answers = "".join(f"\n{chatml.RESPONSE_OPEN}\n{_content(m)}\n{chatml.RESPONSE_CLOSE}" for m in group)
            text += f"{chatml.OPEN}user{answers}{chatml.CLOSE}\n"
        elif role == "assistant":
            text += "".join(_block("assistant", _assistant(message)) for message in group)
        elif role in ("user", "system"):
            text += "".join(_block(str(role), _content(message)) for message in group)
        else:
            raise ValueError(f"no such role: {role!r}")
    if generate:
        text += f"{chatml.OPEN}assistant\n" + (chatml.NO_THINKING if kwargs.get("enable_thinking") is False else "")
    return text


def _block(role: str, content: str) -> str:
    return f"{chatml.OPEN}{role}\n{content}{chatml.CLOSE}\n"


def _content(message: Message) -> str:
    return str(message.get("content") or "")


def _without_thought(message: Message) -> Message:
    if message.get("role") != "assistant":
        return message
    said = (
        _content(message).rpartition(chatml.THINK_CLOSE)[2].lstrip("\n") if chatml.THINK_CLOSE in _content(message) else _content(message)
    )
    return {**message, "content": said, "reasoning_content": None}


def _assistant(message: Message) -> str:
    said = content = _content(message)
    thought = message.get("reasoning_content")
    if isinstance(thought, str) and thought:
        content = f"{chatml.THINK_OPEN}\n{thought.strip(chr(10))}\n{chatml.THINK_CLOSE}\n\n" + content.lstrip("\n")
    for number, function in enumerate(_calls(message)):
        lead = "\n" if number or said else ""
        content += f'{lead}{chatml.CALL_OPEN}\n{{"name": "{function["name"]}", "arguments": {_arguments(function)}}}\n{chatml.CALL_CLOSE}'
    return content


def _llama3(messages: Sequence[Message], tools: Sequence[object], generate: bool, kwargs: Mapping[str, object]) -> str:
    rest = list(messages)
    system = _content(rest.pop(0)).strip() if rest and rest[0].get("role") == "system" else ""
    shown = "".join(json.dumps(tool, ensure_ascii=False, indent=4) + "\n\n" for tool in tools)
    in_user = kwargs.get("tools_in_user_message", True)
    text = llama3.ENVIRONMENT if tools else ""
    text += llama3.DATES.format(date=kwargs.get("date_string", llama3.DATE))
    if tools and not in_user:
        text += llama3.TOOLS_IN_SYSTEM + shown
    text = llama3.BEGIN + _turn("system", text + system)
    if tools and in_user:
        text += _turn("user", llama3.TOOLS_IN_USER + shown + _content(rest.pop(0)).strip())
    for message in rest:
        role = message.get("role")
        calls = _calls(message)
        if role in ("tool", "ipython"):
            text += _turn("ipython", json.dumps(_content(message), ensure_ascii=False))
        elif len(calls) > 1:
            raise ValueError("only single tool calls")
        elif calls:
            text += _turn("assistant", f'{{"name": "{calls[0]["name"]}", "parameters": {_arguments(calls[0])}}}')
        else:
            text += _turn(str(role), _content(message).strip())
    return text + (_header("assistant") if generate else "")


def _header(role: str) -> str:
    return f"{llama3.HEADER_OPEN}{role}{llama3.HEADER_CLOSE}\n\n"


def _turn(role: str, content: str) -> str:
    return f"{_header(role)}{content}{llama3.END_OF_TURN}"


def _calls(message: Message) -> list[Mapping[str, object]]:
    calls = message.get("tool_calls")
    return [call["function"] for call in calls] if isinstance(calls, list) else []


def _arguments(function: Mapping[str, object]) -> str:
    arguments = function["arguments"]
    return json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)


TEMPLATES: Mapping[TemplateName, Callable[[Sequence[Message], Sequence[object], bool, Mapping[str, object]], str]] = {
    "chatml": _qwen,
    "qwen3": _qwen3,
    "qwen2.5": _qwen25,
    "llama3": _llama3,
}
