"""Dialogues as the pipeline will have them: the same system message, tool and template, token by token.

A renderer of the workers writes every frame here, so what the model was taught in is what it meets in a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.messages import ChatMessage
from workers.agent import Renderer
from workers.handlers.math.handler import SYSTEM, WITH_PYTHON
from workers.llm import chatml
from workers.tools.python_tool import PythonTool

SCHEMAS = [
    {
        "type": "function",
        "function": {"name": PythonTool.name, "description": PythonTool.description, "parameters": dict(PythonTool.parameters)},
    }
]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn of the model, and what the tool answers to it; None = it ends the dialogue."""

    text: str
    reply: str | None = None


def call(code: str) -> str:
    """A turn that calls `python`."""
    return f'{chatml.CALL_OPEN}\n{{"name": "python", "arguments": {{"code": "{code}"}}}}\n{chatml.CALL_CLOSE}'


def answer(value: int | str) -> str:
    """A turn that ends the dialogue."""
    return f"\\boxed{{{value}}}"


def opening(question: str) -> tuple[ChatMessage, ...]:
    """How the task `math` begins."""
    return (ChatMessage(role="system", content=SYSTEM.format(tools=WITH_PYTHON)), ChatMessage(role="user", content=question))


def render(renderer: Renderer, question: str, turns: Sequence[Spoken]) -> tuple[list[int], list[int]]:
    """Ids of a dialogue, and for each whether the model says it (1) or reads it (0)."""
    tokenizer = renderer.tokenizer
    ids = list(renderer.first_prompt(opening(question), SCHEMAS).ids)
    said, places = [0] * len(ids), []
    for turn in turns:
        spoken = [*tokenizer.encode_template(turn.text), tokenizer.special(chatml.CLOSE)]
        places.append((len(ids), len(ids) + len(spoken)))
        ids += spoken
        said += [1] * len(spoken)
        if turn.reply is not None:
            ids = list(renderer.next_prompt(ids, places, [ChatMessage(role="tool", content=turn.reply)]).ids)
            said += [0] * (len(ids) - len(said))
    return ids, said
