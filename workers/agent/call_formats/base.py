"""What every reader of tool calls gives: calls that can be run, and faults that the model is told."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.messages import Json
from workers.agent.call_formats.values import decode, packable, without_surrogates
from workers.llm import chatml

Fault = Literal["truncated", "malformed", "unknown_tool", "bad_arguments"]
LONGEST_SHOWN = 80
"""Characters of the model's own text that a fault repeats to it."""
_TAGS = re.compile("|".join(map(re.escape, (chatml.CALL_OPEN, chatml.CALL_CLOSE))))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be run."""

    name: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class CallError:
    """A call that is not run; `message` is what the model is told."""

    fault: Fault
    message: str


Item = ToolCall | CallError
TRUNCATED = CallError("truncated", "the call was cut off before it was complete and was not run")


class Reader(ABC):
    """Reads one syntax in one text.

    After a fault a reader goes on where a call of its own can begin again, and never inside what it found faulty: a call that is written
    in a string of a broken call is text, not a call. What it skips it never looks at again, so the whole costs linear time.

    Args:
        text: the turn.
        tools: schema of each tool's arguments; None = any name goes.
        truncated: whether the text was cut.
    """

    marks: ClassVar[tuple[str, ...]]
    """Texts at which `read` is called; a closing one among them closes nothing there."""
    closing: ClassVar[str] = ""

    def __init__(self, text: str, tools: Mapping[str, Json] | None, *, truncated: bool) -> None:
        self.text = text
        self.tools = tools
        self.truncated = truncated
        self._closes: dict[int, int] | None = None

    def unmarked(self, start: int) -> tuple[list[Item], int]:
        """Calls that need no mark, where an answer begins, and where they end."""
        return [], start

    @abstractmethod
    def read(self, start: int) -> tuple[list[Item], int]:
        """Calls from the mark at `start` on, and where they end."""

    def unended(self, message: str) -> CallError:
        """The fault of a call whose end did not come."""
        return TRUNCATED if self.truncated else CallError("malformed", message)

    def skip_blanks(self, place: int) -> int:
        """The first place from `place` on that holds no blank."""
        while place < len(self.text) and self.text[place] in " \t\r\n":
            place += 1
        return place

    def end_of_block(self, opening: int) -> int | None:
        """Where the block ends that is opened at `opening`, the blocks inside it counted; None = it has no end."""
        if self._closes is None:
            self._closes, open_ones = {}, []
            for tag in _TAGS.finditer(self.text):
                if tag.group() == chatml.CALL_OPEN:
                    open_ones.append(tag.start())
                elif open_ones:
                    self._closes[open_ones.pop()] = tag.end()
        return self._closes.get(opening)

    def call(self, name: object, arguments: object) -> Item:
        """A call from its parts, whatever they are."""
        if not isinstance(name, str) or not name.strip():
            return CallError("malformed", 'the call has no "name"')
        name = without_surrogates(name.strip())
        if self.tools is not None and name not in self.tools:
            return CallError("unknown_tool", f"there is no tool {shown(name)}; the tools are: {', '.join(self.tools) or 'none'}")
        if isinstance(arguments, str):
            try:
                arguments = decode(arguments.strip()) if arguments.strip() else None
            except (ValueError, RecursionError) as error:
                return CallError("bad_arguments", f"the arguments of {shown(name)} are a text that is no JSON object: {error}")
        if arguments is None:
            if self.tools is not None and (self.tools[name].get("properties") or self.tools[name].get("required")):
                return CallError("bad_arguments", f'the call of {shown(name)} has no "arguments"')
            arguments = {}
        if not isinstance(arguments, dict):
            return CallError("bad_arguments", f"the arguments of {shown(name)} must be a JSON object, got {type(arguments).__name__}")
        try:
            return ToolCall(name, packable(arguments))
        except ValueError as error:
            return CallError("bad_arguments", f"the arguments of {shown(name)} cannot be taken: {error}")


def shown(text: str) -> str:
    """A name as a fault repeats it: quoted, its middle left out when it is long."""
    half = LONGEST_SHOWN // 2
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:half]}...{text[-half:]}")
