"""What the scripted policy reads in a prompt: who said what so far, in ChatML."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from workers.llm import chatml

_MESSAGE = re.compile(re.escape(chatml.OPEN) + r"(\w+)\n(.*?)(" + re.escape(chatml.CLOSE) + r"|\Z)", re.DOTALL)
_RESPONSE = re.compile(re.escape(chatml.RESPONSE_OPEN) + r"\n?(.*?)\n?" + re.escape(chatml.RESPONSE_CLOSE), re.DOTALL)
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_FAILED = re.compile(
    r"Traceback|Error\b|^\s*error|timed out|interrupted|killed|not valid JSON|cut off|no tool", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The state of a dialogue, seen from the turn that is due."""

    question: str
    """All that users asked, tool answers aside."""
    tools: dict[str, str]
    """Name of the first argument of each tool on offer."""
    said: tuple[str, ...]
    """Turns the model has taken, oldest first."""
    tool_result: str | None
    """What the last message says when it is a tool's."""
    opened: str
    """What the due turn already holds: text that the template or an interrupted call put there."""

    @property
    def answers(self) -> int:
        """How many turns the model has taken."""
        return len(self.said)

    @property
    def tool_failed(self) -> bool:
        """Whether the last tool call went wrong."""
        return self.tool_result is not None and bool(_FAILED.search(self.tool_result))


def read_conversation(text: str) -> Conversation:
    """The dialogue in a prompt; a text without ChatML is one question."""
    messages = [(m.group(1), m.group(2), bool(m.group(3))) for m in _MESSAGE.finditer(text)]
    if not messages:
        return Conversation(question=text, tools={}, said=(), tool_result=None, opened="")
    opened = ""
    if messages[-1][0] == "assistant" and not messages[-1][2]:
        opened = messages.pop()[1]
    asked, result = [], None
    for role, content, _ in messages:
        if role != "user":
            continue
        responses = _RESPONSE.findall(content)
        if not responses:
            asked.append(content)
    if messages and messages[-1][0] in ("user", "tool"):
        responses = _RESPONSE.findall(messages[-1][1])
        if responses:
            result = responses[-1]
    system = next((content for role, content, _ in messages if role == "system"), "")
    return Conversation(
        question="\n\n".join(asked),
        tools=_tools_in(system),
        said=tuple(content for role, content, _ in messages if role == "assistant"),
        tool_result=result,
        opened=opened,
    )


def _tools_in(system: str) -> dict[str, str]:
    tools: dict[str, str] = {}
    block = _TOOLS.search(system)
    for line in block.group(1).splitlines() if block else ():
        try:
            schema = json.loads(line)
        except json.JSONDecodeError:
            continue  # a tool the policy cannot read is one it does not call
        match schema:
            case {"function": {"name": str(name), "parameters": {"properties": dict(properties)}}}:
                tools[name] = next(iter(properties), "code")
    return tools
