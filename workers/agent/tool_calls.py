"""Tool calls in what the model wrote.

Invariants:
  1. A call is run as it stands or not at all: one that was cut off, cannot be read, or names no tool becomes a `CallError` that the
     model is told. None is dropped without a word, and none is completed or guessed.
  2. What stands inside a thought is no call.
  3. Every value of a call can be packed for the queue: no lone surrogates, no numbers beyond 64 bits or beyond finite.

The text is read once from left to right, in linear time. A call's own syntax is read by its format (`call_formats/`), so a tag inside a
JSON string closes nothing, and a call inside a broken call's string is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from pipeline.messages import Json
from workers.agent.call_formats import FORMATS, CallError, Item, ToolCall
from workers.llm import chatml

Format = Literal["hermes", "qwen3_coder", "llama3_json"]
MOST_ITEMS = 256
"""Calls and faults of one turn that are read: more are a model stuck on a tag, and each has a message."""


class ParsedTurn:
    """A turn taken apart.

    Args:
        content: what is said outside thoughts and calls, stripped.
        thought: what is said inside thoughts.
        items: calls and faults in the order they were written; each gets one answer.
        in_thought: whether the text ended inside a thought.
    """

    __slots__ = ("content", "in_thought", "items", "thought")

    def __init__(self, content: str, thought: str, items: Sequence[Item], *, in_thought: bool) -> None:
        self.content = content
        self.thought = thought
        self.items = tuple(items)
        self.in_thought = in_thought

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that can be run."""
        return tuple(item for item in self.items if isinstance(item, ToolCall))

    @property
    def errors(self) -> tuple[CallError, ...]:
        """The faults the model is told."""
        return tuple(item for item in self.items if isinstance(item, CallError))


def parse_turn(
    text: str,
    *,
    finish: str = "stop",
    tools: Mapping[str, Json] | None = None,
    format: Format = "hermes",  # noqa: A002  (the word of the domain)
    in_thought: bool | None = None,
) -> ParsedTurn:
    """Take a turn apart.

    Args:
        text: decoded text of the turn, its end token left out.
        finish: the server's word; anything but `stop` means that the text was cut.
        tools: schema of the arguments of each tool on offer; None = any name goes.
        format: how the model writes calls.
        in_thought: whether the prompt had opened a thought; None = not known, then a closing tag without an opening one tells.
    """
    reader = FORMATS[format](text, tools, truncated=finish != "stop")
    marks = _marks(reader.marks)
    content: list[str] = []
    thoughts: list[str] = []
    items: list[Item] = []
    place, is_beginning = 0, True
    thinking = in_thought is True
    if not thinking:
        items, place = reader.unmarked(0)
    while True:
        if thinking:
            end = text.find(chatml.THINK_CLOSE, place)
            thoughts.append(text[place:] if end < 0 else text[place:end])
            if end < 0:
                return _turn(content, thoughts, items, in_thought=True)
            place, thinking = end + len(chatml.THINK_CLOSE), False
            if not items and is_beginning:
                items, place = reader.unmarked(place)
            continue
        found = marks.search(text, place)
        content.append(text[place:] if found is None else text[place : found.start()])
        is_beginning = is_beginning and not content[-1].strip()
        if found is None:
            return _turn(content, thoughts, items, in_thought=False)
        place = found.end()
        closes_unopened = in_thought is None and not thoughts
        if found.group() == chatml.THINK_OPEN:
            thinking = True
        elif found.group() == chatml.THINK_CLOSE and closes_unopened:
            thoughts.append(text[: found.start()])
            content.clear()
            items, place = reader.unmarked(place)
        elif found.group() == chatml.THINK_CLOSE:
            content.append(found.group())
        elif found.group() == reader.closing:
            if "{" in content[-1] or "=" in content[-1]:
                items.append(CallError("malformed", f"{reader.closing} closes nothing: a call begins with {reader.marks[0]}"))
        else:
            more, place = reader.read(found.start())
            if closes_unopened and place == len(text) and isinstance(more[-1], CallError):
                # A thought that was opened in the prompt may speak of the tags and leave one open.
                close = text.find(chatml.THINK_CLOSE, found.start())
                if close >= 0:
                    more, place = [], close
            items.extend(more)
            if len(items) > MOST_ITEMS:
                rest = CallError("malformed", f"more than {MOST_ITEMS} calls in one turn: the rest was not read")
                return _turn(content, thoughts, [*items[:MOST_ITEMS], rest], in_thought=False)


@lru_cache(maxsize=16)
def _marks(of_format: tuple[str, ...]) -> re.Pattern[str]:
    """Finds where a thought or a call of a format begins or ends."""
    return re.compile("|".join(re.escape(mark) for mark in (chatml.THINK_OPEN, chatml.THINK_CLOSE, *of_format)))


def _turn(content: Sequence[str], thoughts: Sequence[str], items: Sequence[Item], *, in_thought: bool) -> ParsedTurn:
    return ParsedTurn("".join(content).strip(), "\n".join(thoughts).strip(), items, in_thought=in_thought)
