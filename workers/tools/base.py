"""What a tool is to the agent loop.

A tool answers with text for the model; what the model did wrong (bad arguments, code that raises, a command that runs too long) is
such a text with `is_error`. What broke underneath (sandbox gone, connection lost) is raised: it is not the model's to read, and the
stage decides whose fault it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pipeline.errors import RollstreamError
from pipeline.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool answers."""

    text: str
    """For the model; cut in tokens before it is appended."""
    is_error: bool = False
    """The call failed in a way the model should learn of."""
    ends: bool = False
    """The trajectory ends with this call."""
    answer: str = ""
    """What is graded, of a call that ends the trajectory."""
    details: Json = field(default_factory=dict)
    """For people and handlers; never shown to the model."""
    images: Sequence[bytes] = ()
    """Files of images that the model is shown behind the text; only of a tool that was told to (`ShowsImages`)."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call that has ended, for those who measure. What was passed and answered is not in it."""

    name: str
    """Of a tool of the task; empty = the model named none of them."""
    began_s: float
    """Of the monotonic clock."""
    is_fault: bool
    """The call was at fault, and no tool ran."""
    error: str
    """`tool_error` when the tool answered with an error, the class of what was raised, `fault`; empty = it did well."""


class Tool(Protocol):
    """Something the model can call."""

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        ...

    @property
    def description(self) -> str:
        """What the model is told it does."""
        ...

    @property
    def parameters(self) -> Json:
        """JSON schema of its arguments: an object with `properties` and `required`."""
        ...

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Run it. Arguments have been checked against `parameters`. It keeps to `timeout_s` and says when it hit it.

        When the awaiting task is cancelled it stops what it started.
        """
        ...


@runtime_checkable
class ShowsImages(Protocol):
    """A tool that can show images. It does when its model sees them; else it tells of them."""

    shows_images: bool


class ToolOverran(RollstreamError):
    """A tool that did not end within its own time and a grace: what it runs on is broken."""

    def __init__(self, tool: str, after_s: float) -> None:
        super().__init__(f"tool {tool!r} did not return within {after_s:g} s though it was told to")
        self.tool = tool


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class ToolSet:
    """The tools of one trajectory, by name, in the order they are shown.

    Raises:
        ValueError: two tools have one name.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are called {tool.name!r}")
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def schemas(self) -> list[dict[str, object]]:
        """The tools as the model's template shows them."""
        return [
            {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}}
            for tool in self
        ]

    def parameters(self) -> dict[str, Json]:
        """Schema of the arguments, by tool."""
        return {tool.name: tool.parameters for tool in self}

    def complaint(self, name: str, arguments: Mapping[str, object]) -> str:
        """What is wrong with the arguments of a call, for the model; empty when nothing is."""
        schema = self._tools[name].parameters
        properties = schema.get("properties")
        known: Mapping[str, object] = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        for argument in required if isinstance(required, list | tuple) else ():
            if argument not in arguments:
                return f"argument {argument!r} is missing"
        for argument, value in arguments.items():
            expected = known.get(argument)
            if isinstance(expected, Mapping):
                wrong = _wrong_type(expected, value)
                if wrong:
                    return f"argument {argument!r} {wrong}"
            elif schema.get("additionalProperties") is False:
                return f"there is no argument {argument!r}; the arguments are: {', '.join(known) or 'none'}"
        return ""


def _wrong_type(schema: Mapping[str, object], value: object) -> str:
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        is_bool_for_number = isinstance(value, bool) and kind in ("integer", "number")
        if not isinstance(value, _TYPES[kind]) or is_bool_for_number:
            return f"must be of type {kind}, got {type(value).__name__}"
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and value not in choices:
        return f"must be one of {', '.join(map(repr, choices))}"
    return ""
