"""Chat templates in Jinja, as inference servers keep them beside a model, for models that we make ourselves.

    qwen     ChatML with tools in the system message; thoughts stay where they were said, as our own renderer keeps them
    qwen3    the same, but thoughts before the last thing a user said are left out, as Qwen3's own template does
    llama3   headers and `<|eot_id|>`, tools in the first user message or in the system message, answers as `ipython`

The fixed texts are those of `workers/llm/chatml.py` and `llama3.py`, set as variables at the head of the template: one fact, one place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, get_args

from workers.llm import chatml, llama3

TemplateName = Literal["qwen", "qwen3", "llama3"]
TEMPLATE_NAMES: tuple[TemplateName, ...] = get_args(TemplateName)


def chat_template(name: TemplateName) -> str:
    """The template as text."""
    texts, dialogue = (_LLAMA3_TEXTS, _LLAMA3) if name == "llama3" else (_TEXTS, _DIALOGUE)
    head = "".join(f"{{%- set {variable} = {_quoted(text)} %}}\n" for variable, text in texts.items())
    thoughts = {"qwen": _THOUGHTS_STAY, "qwen3": _THOUGHTS_GO, "llama3": ""}[name]
    return head + thoughts + dialogue


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

_BEFORE_DATE, _AFTER_DATE = llama3.DATES.split("{date}")
_LLAMA3_TEXTS: Mapping[str, str] = {
    "BEGIN": llama3.BEGIN,
    "OPEN": llama3.HEADER_OPEN,
    "CLOSE": llama3.HEADER_CLOSE + "\n\n",
    "END": llama3.END_OF_TURN,
    "ENVIRONMENT": llama3.ENVIRONMENT,
    "BEFORE_DATE": _BEFORE_DATE,
    "DATE": llama3.DATE,
    "AFTER_DATE": _AFTER_DATE,
    "TOOLS_IN_SYSTEM": llama3.TOOLS_IN_SYSTEM,
    "TOOLS_IN_USER": llama3.TOOLS_IN_USER,
}

_LLAMA3 = """\
{%- set date = date_string if date_string is defined else DATE %}
{%- set in_user = tools_in_user_message if tools_in_user_message is defined else true %}
{%- set has_system = messages and messages[0].role == "system" %}
{%- set rest = messages[1:] if has_system else messages %}
{{- BEGIN + OPEN + "system" + CLOSE }}
{%- if tools %}{{- ENVIRONMENT }}{%- endif %}
{{- BEFORE_DATE + date + AFTER_DATE }}
{%- if tools and not in_user %}
    {{- TOOLS_IN_SYSTEM }}
    {%- for tool in tools %}{{- (tool | tojson(indent=4)) + "\n\n" }}{%- endfor %}
{%- endif %}
{{- (messages[0].content.strip() if has_system else "") + END }}
{%- if tools and in_user %}
    {{- OPEN + "user" + CLOSE + TOOLS_IN_USER }}
    {%- for tool in tools %}{{- (tool | tojson(indent=4)) + "\n\n" }}{%- endfor %}
    {{- rest[0].content.strip() + END }}
    {%- set rest = rest[1:] %}
{%- endif %}
{%- for message in rest %}
    {%- set calls = message.tool_calls or [] %}
    {%- if message.role == "tool" or message.role == "ipython" %}
        {{- OPEN + "ipython" + CLOSE + (message.content | tojson) + END }}
    {%- elif calls | length > 1 %}
        {{- raise_exception("only single tool calls") }}
    {%- elif calls %}
        {%- set arguments = calls[0].function.arguments %}
        {{- OPEN + "assistant" + CLOSE + '{"name": "' + calls[0].function.name + '", "parameters": ' }}
        {{- (arguments if arguments is string else (arguments | tojson)) + "}" + END }}
    {%- else %}
        {{- OPEN + message.role + CLOSE + (message.content or "").strip() + END }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- OPEN + "assistant" + CLOSE }}{%- endif %}
"""
