"""Chat templates in Jinja, as inference servers keep them beside a model, for models that we make ourselves.

    qwen     ChatML with tools in the system message; thoughts stay where they were said, as our own renderer keeps them
    qwen3    the same, but thoughts before the last thing a user said are left out, as Qwen3's own template does

The fixed texts are those of `workers/llm/chatml.py`, set as variables at the head of the template: one fact, one place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, get_args

from workers.llm import chatml

TemplateName = Literal["qwen", "qwen3"]
TEMPLATE_NAMES: tuple[TemplateName, ...] = get_args(TemplateName)


def chat_template(name: TemplateName) -> str:
    """The template as text."""
    texts = "".join(f"{{%- set {variable} = {_quoted(text)} %}}\n" for variable, text in _TEXTS.items())
    return texts + (_THOUGHTS_STAY if name == "qwen" else _THOUGHTS_GO) + _DIALOGUE


def _quoted(text: str) -> str:
    """A Jinja string literal; Jinja reads the escapes that JSON writes."""
    return json.dumps(text)


_TEXTS: Mapping[str, str] = {
    "OPEN": chatml.OPEN,
    "CLOSE": chatml.CLOSE + "\n",
    "THINK_OPEN": chatml.THINK_OPEN + "\n",
    "THINK_CLOSE": chatml.THINK_CLOSE,
    "CALL_OPEN": chatml.CALL_OPEN + '\n{"name": "',
    "CALL_CLOSE": "}\n" + chatml.CALL_CLOSE,
    "RESPONSE_OPEN": "\n" + chatml.RESPONSE_OPEN + "\n",
    "RESPONSE_CLOSE": "\n" + chatml.RESPONSE_CLOSE,
    "NO_THINKING": chatml.NO_THINKING,
    "TOOLS_BEFORE": chatml.TOOLS_BEFORE,
    "TOOLS_AFTER": chatml.TOOLS_AFTER,
}

_THOUGHTS_STAY = "{%- set first_thought = 0 %}\n"
_THOUGHTS_GO = """\
{%- set seen = namespace(user=0) %}
{%- for message in messages %}{%- if message.role == "user" %}{%- set seen.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- set first_thought = seen.user %}
"""

_DIALOGUE = """\
{%- set has_system = messages and messages[0].role == "system" %}
{%- if tools %}
    {{- OPEN + "system\n" }}
    {%- if has_system %}{{- messages[0].content + "\n\n" }}{%- endif %}
    {{- TOOLS_BEFORE }}
    {%- for tool in tools %}{{- "\n" + (tool | tojson) }}{%- endfor %}
    {{- TOOLS_AFTER + CLOSE }}
{%- elif has_system %}
    {{- OPEN + "system\n" + messages[0].content + CLOSE }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else "" %}
    {%- if message.role == "assistant" %}
        {%- set thought = message.reasoning_content or message.reasoning or "" %}
        {{- OPEN + "assistant\n" }}
        {%- if thought and loop.index0 >= first_thought %}
            {{- THINK_OPEN + thought.strip("\n") + "\n" + THINK_CLOSE + "\n\n" + content.lstrip("\n") }}
        {%- elif loop.index0 < first_thought and THINK_CLOSE in content %}
            {{- content.split(THINK_CLOSE)[-1].lstrip("\n") }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{- "\n" }}{%- endif %}
            {%- set arguments = call.function.arguments %}
            {{- CALL_OPEN + call.function.name + '", "arguments": ' }}
            {{- (arguments if arguments is string else (arguments | tojson)) + CALL_CLOSE }}
        {%- endfor %}
        {{- CLOSE }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- OPEN + "user" }}{%- endif %}
        {{- RESPONSE_OPEN + content + RESPONSE_CLOSE }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- CLOSE }}{%- endif %}
    {%- elif not (loop.first and has_system) %}
        {{- OPEN + message.role + "\n" + content + CLOSE }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- OPEN + "assistant\n" }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- NO_THINKING }}{%- endif %}
{%- endif %}
"""
