"""The dialogues on which a renderer and a server's chat template are compared. Their names are part of a job's settings."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pipeline.messages import ChatMessage, Json
from workers.agent.renderers import tool_schema
from workers.llm import chatml

THOUGHT = "I add both numbers."
"""Inside the thoughts of the dialogues, and nowhere else in them."""
_TOOL = tool_schema("python", {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}, "Run code: é.")
_CALL = {"id": "call_1", "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": "print(1 + 1)"})}}
_SYSTEM = ChatMessage(role="system", content="You are careful.")
_USER = ChatMessage(role="user", content="What is 1 + 1?\n\nThink.")
_ANSWERS = (ChatMessage(role="tool", content="2"), ChatMessage(role="tool", content='\n2 again: "é"\n'))
_AGAIN = ChatMessage(role="user", content="And 2 + 2?")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A first prompt; with `spoken`, what is appended after that turn of the model, too."""

    name: str
    first: tuple[ChatMessage, ...]
    tools: tuple[Json, ...] = ()
    spoken: str = ""
    """Text of the model's turn."""
    thought: str = ""
    """Before it, as markup; empty = it did not think."""
    calls: bool = False
    """Whether the turn ends with a call of the tool."""
    replies: tuple[ChatMessage, ...] = ()

    def as_server_takes_it(self) -> list[dict[str, object]]:
        """All messages in the OpenAI form."""
        messages: list[dict[str, object]] = [{"role": message.role, "content": message.content} for message in self.first]
        if self.replies:
            turn: dict[str, object] = {"role": "assistant", "content": self.thought + self.spoken}
            messages.append(turn | ({"tool_calls": [_CALL]} if self.calls else {}))
            for message in self.replies:
                named = {"tool_call_id": _CALL["id"], "name": "python"} if message.role == "tool" else {}
                messages.append({"role": message.role, "content": message.content, **named})
        return messages


_MARKED = f"{chatml.THINK_OPEN}\n{THOUGHT}\n{chatml.THINK_CLOSE}\n\n"
DIALOGUES = (
    Dialogue("user", (_USER,)),
    Dialogue("system", (_SYSTEM, _USER)),
    Dialogue("tools", (_USER,), (_TOOL,)),
    Dialogue("system and tools", (_SYSTEM, _USER), (_TOOL,)),
    Dialogue("two user turns", (_SYSTEM, _USER), spoken="2", replies=(_AGAIN,)),
    Dialogue("two user turns after a thought", (_USER,), spoken="2", thought=_MARKED, replies=(_AGAIN,)),
    Dialogue("two tool answers", (_SYSTEM, _USER), (_TOOL,), spoken="I run it.", calls=True, replies=_ANSWERS),
    Dialogue("two tool answers after a thought", (_USER,), (_TOOL,), spoken="I run it.", thought=_MARKED, calls=True, replies=_ANSWERS),
)
NAMES = tuple(dialogue.name for dialogue in DIALOGUES)
