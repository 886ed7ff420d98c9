"""The check at start: does our renderer write what the server's own chat template writes?

A renderer that differs from the template a model was trained with still works, only worse, and nobody notices. So canonical dialogues
are rendered by both and the ids compared: first prompts as a whole, appended ones from the end of the model's turn on (how a template
writes that turn again does not matter: we keep the ids it was sampled with).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.errors import RollstreamError
from pipeline.messages import ChatMessage, Json
from workers.agent.renderers import Renderer, tool_schema


class TemplateMismatch(RollstreamError):
    """Our renderer and the server's template disagree on a dialogue."""

    def __init__(self, dialogue: str, place: int, ours: str, theirs: str) -> None:
        super().__init__(
            f"renderer and chat template of the server differ on the dialogue {dialogue!r} at token {place}: "
            f"ours goes on {ours!r}, the server's {theirs!r}; choose the renderer's settings (thinking, tools) for this model"
        )
        self.dialogue = dialogue
        self.place = place


class ChatTemplate(Protocol):
    """A server that renders dialogues."""

    async def render_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **template_kwargs: Any) -> list[int]:
        """Ids of a dialogue, generation prompt included."""
        ...


@dataclass(frozen=True, slots=True)
class _Dialogue:
    name: str
    first: tuple[ChatMessage, ...]
    tools: tuple[Json, ...] = ()
    spoken: Mapping[str, Any] | None = None
    """The model's turn, as the server takes it."""
    replies: tuple[ChatMessage, ...] = ()


_TOOLS = (tool_schema("python", {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}, "Run code."),)
_ARGUMENTS = {"code": "print(1 + 1)"}
_SYSTEM = ChatMessage(role="system", content="You are careful.")
_USER = ChatMessage(role="user", content="What is 1 + 1?\n\nThink.")


def canonical_dialogues() -> list[_Dialogue]:
    """The dialogues that are compared."""
    call = {"type": "function", "function": {"name": "python", "arguments": _ARGUMENTS}}
    return [
        _Dialogue("user", (_USER,)),
        _Dialogue("system and user", (_SYSTEM, _USER)),
        _Dialogue("tools", (_USER,), _TOOLS),
        _Dialogue("system and tools", (_SYSTEM, _USER), _TOOLS),
        _Dialogue(
            "two tool answers",
            (_SYSTEM, _USER),
            _TOOLS,
            {"role": "assistant", "content": "", "reasoning_content": "I use the tool.", "tool_calls": [call, call]},
            (ChatMessage(role="tool", content="2"), ChatMessage(role="tool", content="\n2 again\n")),
        ),
    ]


async def check_template(renderer: Renderer, server: ChatTemplate, template_kwargs: Mapping[str, Any] | None = None) -> None:
    """Compare all canonical dialogues.

    Args:
        template_kwargs: switches the server's template needs to be like the renderer (`enable_thinking`).

    Raises:
        TemplateMismatch: they differ.
        ModelError: the server did not render.
    """
    for dialogue in canonical_dialogues():
        messages: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in dialogue.first]
        ours = renderer.first_prompt(dialogue.first, dialogue.tools).ids
        if dialogue.spoken is not None:
            end = renderer.stop_token_ids[0]
            ours = renderer.next_prompt([*ours, end], [(len(ours), len(ours) + 1)], dialogue.replies).ids[len(ours) :]
            messages += [dict(dialogue.spoken), *({"role": m.role, "content": m.content} for m in dialogue.replies)]
        theirs = await server.render_chat(messages, [dict(tool) for tool in dialogue.tools], **(template_kwargs or {}))
        if dialogue.spoken is not None:
            theirs = theirs[-len(ours) :]
        if ours == theirs:
            continue
        place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        shown = [renderer.tokenizer.decode(ids[place : place + 12]) for ids in (ours, theirs)]
        raise TemplateMismatch(dialogue.name, place, *shown)
