"""The server's own chat template: a dialogue as one text, in the manner of Qwen's with thinking kept.

Written apart from the client's renderer on purpose: the check at start compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from workers.llm import chatml

Message = Mapping[str, object]


def render_chat(
    messages: Sequence[Message], tools: Sequence[object], *, add_generation_prompt: bool = True, enable_thinking: bool = True
) -> str:
    """The dialogue as text.

    Raises:
        ValueError: a role this template does not know.
    """
    rest = list(messages)
    system = str(rest.pop(0).get("content") or "") if rest and rest[0].get("role") == "system" else None
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
            answers = "".join(f"\n{chatml.RESPONSE_OPEN}\n{m.get('content') or ''}\n{chatml.RESPONSE_CLOSE}" for m in group)
            text += f"{chatml.OPEN}user{answers}{chatml.CLOSE}\n"
        elif role == "assistant":
            text += "".join(_block("assistant", _assistant(message)) for message in group)
        elif role in ("user", "system"):
            text += "".join(_block(str(role), str(message.get("content") or "")) for message in group)
        else:
            raise ValueError(f"no such role: {role!r}")
    if add_generation_prompt:
        text += f"{chatml.OPEN}assistant\n" + ("" if enable_thinking else chatml.NO_THINKING)
    return text


def _block(role: str, content: str) -> str:
    return f"{chatml.OPEN}{role}\n{content}{chatml.CLOSE}\n"


def _assistant(message: Message) -> str:
    said = content = str(message.get("content") or "")
    thought = message.get("reasoning_content")
    if isinstance(thought, str) and thought:
        content = f"{chatml.THINK_OPEN}\n{thought.strip(chr(10))}\n{chatml.THINK_CLOSE}\n\n" + content.lstrip("\n")
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call["function"]
        arguments = function["arguments"]
        spelt = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        lead = "\n" if number or said else ""
        content += f'{lead}{chatml.CALL_OPEN}\n{{"name": "{function["name"]}", "arguments": {spelt}}}\n{chatml.CALL_CLOSE}'
    return content
