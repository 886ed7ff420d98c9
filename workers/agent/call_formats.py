"""The syntaxes in which models write tool calls; each is read by one small reader."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

from pipeline.messages import Json
from workers.llm import chatml

Fault = Literal["truncated", "malformed", "unknown_tool", "bad_arguments"]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
MAX_DEPTH = 64
"""Nesting of arguments; deeper ones only serve to break readers."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
    """Reads one syntax.

    Args:
        tools: schema of each tool's arguments; None = any name goes.
        truncated: whether the text was cut.
    """

    marks: ClassVar[tuple[str, ...]]
    """Texts at which `read` is called; a closing one among them closes nothing there."""
    closing: ClassVar[str] = ""

    def __init__(self, tools: Mapping[str, Json] | None, *, truncated: bool) -> None:
        self.tools = tools
        self.truncated = truncated

    def at_start(self, text: str) -> tuple[list[Item], int]:
        """Calls that need no mark, at the start of the text, and where they end."""
        return [], 0

    @abstractmethod
    def read(self, text: str, start: int) -> tuple[list[Item], int]:
        """Calls from the mark at `start` on, and where they end."""

    def unended(self, message: str) -> CallError:
        """The fault of a call whose end did not come."""
        return TRUNCATED if self.truncated else CallError("malformed", message)

    def call(self, name: object, arguments: object) -> Item:
        """A call from its parts, whatever they are."""
        if not isinstance(name, str) or not name.strip():
            return CallError("malformed", 'the call has no "name"')
        name = _LONE_SURROGATE.sub("\ufffd", name.strip())
        if self.tools is not None and name not in self.tools:
            return CallError("unknown_tool", f"there is no tool {name!r}; the tools are: {', '.join(self.tools) or 'none'}")
        if isinstance(arguments, str):
            try:
                arguments = _DECODER.decode(arguments.strip()) if arguments.strip() else None
            except (ValueError, RecursionError) as error:
                return CallError("bad_arguments", f"the arguments of {name!r} are a text that is no JSON object: {error}")
        if arguments is None:
            if self.tools is not None and (self.tools[name].get("properties") or self.tools[name].get("required")):
                return CallError("bad_arguments", f'the call of {name!r} has no "arguments"')
            arguments = {}
        if not isinstance(arguments, dict):
            return CallError("bad_arguments", f"the arguments of {name!r} must be a JSON object, got {type(arguments).__name__}")
        try:
            clean = _packable(arguments, MAX_DEPTH)
        except ValueError as error:
            return CallError("bad_arguments", f"the arguments of {name!r} cannot be taken: {error}")
        assert isinstance(clean, dict)
        return ToolCall(name, clean)


class HermesReader(Reader):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Qwen, Hermes and many others."""

    marks = (chatml.CALL_OPEN, chatml.CALL_CLOSE)
    closing = chatml.CALL_CLOSE

    def read(self, text: str, start: int) -> tuple[list[Item], int]:
        items: list[Item] = []
        place = _skip_blanks(text, start + len(chatml.CALL_OPEN))
        while True:
            if place == len(text):
                return [*items, self.unended("the call is empty")], place
            try:
                value, end = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                item, end = self._unreadable(text, place, error)
                return [*items, item], end
            items.extend(self._calls_of(value))
            place = _skip_blanks(text, end)
            if text.startswith(chatml.CALL_CLOSE, place):
                return items, place + len(chatml.CALL_CLOSE)
            if text.startswith(chatml.CALL_OPEN, place):
                return items, place
            if place == len(text) or (self.truncated and chatml.CALL_CLOSE.startswith(text[place:])):
                # The closing tag may have been the stop string; a text cut by its budget may have lost more than the tag.
                return ([*items[:-1], TRUNCATED] if self.truncated else items), len(text)
            if text[place] not in "{[":
                rest = text.find(chatml.CALL_CLOSE, place)
                fault = CallError("malformed", f"expected {chatml.CALL_CLOSE} after the JSON object, got {text[place : place + 20]!r}")
                return [fault], (len(text) if rest < 0 else rest + len(chatml.CALL_CLOSE))

    def _calls_of(self, value: object) -> list[Item]:
        if isinstance(value, list) and value:
            return [item for entry in value for item in self._calls_of(entry)]
        if not isinstance(value, dict):
            return [CallError("malformed", 'expected one JSON object with "name" and "arguments" between the tags')]
        inner = value.get("function")
        source = inner if isinstance(inner, dict) and "name" not in value else value
        return [self.call(source.get("name"), source.get("arguments", source.get("parameters")))]

    def _unreadable(self, text: str, place: int, error: Exception) -> tuple[CallError, int]:
        ran_to_the_end = isinstance(error, json.JSONDecodeError) and (error.pos >= len(text) or error.msg.startswith("Unterminated string"))
        close = text.find(chatml.CALL_CLOSE, place)
        if self.truncated and (ran_to_the_end or close < 0):
            return TRUNCATED, len(text)
        next_open = text.find(chatml.CALL_OPEN, place)
        why = (
            f"{error.msg} at character {error.pos - place}"
            if isinstance(error, json.JSONDecodeError)
            else str(error) or type(error).__name__
        )
        fault = CallError(
            "malformed",
            f'the call is not valid JSON: {why}. Write one JSON object with "name" and "arguments" between '
            f"{chatml.CALL_OPEN} and {chatml.CALL_CLOSE}",
        )
        if close >= 0 and not 0 <= next_open < close:
            return fault, close + len(chatml.CALL_CLOSE)
        return fault, next_open if next_open >= 0 else len(text)


class QwenCoderReader(Reader):
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>` inside tags: Qwen3-Coder.

    Values are plain text: nothing is escaped. They are made numbers, lists and the like where the tool's schema asks for it; a value
    that is not what the schema says is passed on as text, for the tool set to complain of.
    """

    marks = (chatml.CALL_OPEN, "<function=", chatml.CALL_CLOSE)
    closing = chatml.CALL_CLOSE
    _HEAD = re.compile(r"<function=([^>\n]*)>")
    _KEY = re.compile(r"<parameter=([^>\n]*)>")
    _END_OF_VALUE = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
    _UNCLOSED_VALUE = re.compile(r"\n<parameter=[^>\n]*>")

    def read(self, text: str, start: int) -> tuple[list[Item], int]:
        wrapped = text.startswith(chatml.CALL_OPEN, start)
        place = _skip_blanks(text, start + len(chatml.CALL_OPEN)) if wrapped else start
        items: list[Item] = []
        while text.startswith("<function=", place):
            item, end, readable = self._function(text, place)
            items.append(item)
            if not readable:
                return items, end
            place = _skip_blanks(text, end)
        if not wrapped:
            return items, place
        if text.startswith(chatml.CALL_CLOSE, place):
            place += len(chatml.CALL_CLOSE)
        elif place < len(text) and not items:
            close = text.find(chatml.CALL_CLOSE, place)
            items.append(self.unended("expected <function=NAME> between the tags") if close < 0 else _NO_FUNCTION)
            place = len(text) if close < 0 else close + len(chatml.CALL_CLOSE)
        if not items:
            items.append(self.unended("the call is empty"))
        return items, place

    def _function(self, text: str, start: int) -> tuple[Item, int, bool]:
        """One function, where it ends, and whether reading can go on there."""
        head = self._HEAD.match(text, start)
        if head is None:
            return self._fault(text, start, "the name of the function has no end")
        name = head.group(1).strip()
        arguments: dict[str, object] = {}
        place = _skip_blanks(text, head.end())
        while (key := self._KEY.match(text, place)) is not None:
            end = self._END_OF_VALUE.search(text, key.end())
            if end is None or self._UNCLOSED_VALUE.search(text, key.end(), end.start()):
                return self._fault(text, start, f"parameter {key.group(1)!r} of {name!r} has no </parameter>")
            value = text[key.end() : end.start()].removeprefix("\r").removeprefix("\n")
            arguments[key.group(1).strip()] = self._typed(name, key.group(1).strip(), value)
            place = _skip_blanks(text, end.end())
        if not text.startswith("</function>", place):
            return self._fault(text, start, f"function {name!r} has no </function>")
        return self.call(name, arguments), place + len("</function>"), True

    def _fault(self, text: str, start: int, message: str) -> tuple[Item, int, bool]:
        close = text.find(chatml.CALL_CLOSE, start)
        if close < 0:
            return self.unended(message), len(text), False
        return CallError("malformed", message), close + len(chatml.CALL_CLOSE), False

    def _typed(self, tool: str, parameter: str, value: str) -> object:
        schema = (self.tools or {}).get(tool, {}).get("properties")
        declared = schema.get(parameter) if isinstance(schema, Mapping) else None
        kind = declared.get("type") if isinstance(declared, Mapping) else "string"
        if kind in (None, "string"):
            return value
        bare = value.strip()
        try:
            read = _DECODER.decode({"True": "true", "False": "false", "None": "null"}.get(bare, bare))
        except (ValueError, RecursionError):
            return value
        expected = _TYPES.get(str(kind))
        return read if read is None or expected is None or isinstance(read, expected) else value


class LlamaJsonReader(Reader):
    """`<|python_tag|>{"name": ..., "parameters": {...}}`, more of them after `;`: Llama 3. The tag may be missing at the start."""

    marks = ("<|python_tag|>", "<|python_start|>")
    _ENDS = ("<|python_end|>", "<|eom_id|>", "<|eot_id|>")
    _BARE = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')

    def at_start(self, text: str) -> tuple[list[Item], int]:
        return self._objects(text, 0) if self._BARE.match(text) else ([], 0)

    def read(self, text: str, start: int) -> tuple[list[Item], int]:
        return self._objects(text, text.index(">", start) + 1)

    def _objects(self, text: str, place: int) -> tuple[list[Item], int]:
        items: list[Item] = []
        place = _skip_blanks(text, place)
        while True:
            try:
                value, end = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                return [*items, self.unended(f"the call is not valid JSON: {error}")], len(text)
            items.extend(self._calls_of(value))
            place = _skip_blanks(text, end)
            for ending in self._ENDS:
                if text.startswith(ending, place):
                    return items, place + len(ending)
            if place < len(text) and text[place] in ";,":
                place = _skip_blanks(text, place + 1)
            if place == len(text):
                return items, place
            if text[place] != "{":
                return items, place

    def _calls_of(self, value: object) -> list[Item]:
        if isinstance(value, list) and value:
            return [item for entry in value for item in self._calls_of(entry)]
        if not isinstance(value, dict):
            return [CallError("malformed", 'expected a JSON object with "name" and "parameters"')]
        inner = value.get("function")
        source = inner if isinstance(inner, dict) else value
        name = inner if isinstance(inner, str) and "name" not in value else source.get("name")
        return [self.call(name, source.get("parameters", source.get("arguments")))]


FORMATS: Mapping[str, type[Reader]] = {"hermes": HermesReader, "qwen3_coder": QwenCoderReader, "llama3_json": LlamaJsonReader}
_NO_FUNCTION = CallError("malformed", "expected <function=NAME> between the tags")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite)
"""Line breaks and tabs inside strings are read as meant; NaN and infinities are not JSON."""


def _packable(value: object, depth: int) -> object:
    """`value` with lone surrogates replaced."""
    if depth < 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number beyond 64 bits")
    if isinstance(value, list):
        return [_packable(entry, depth - 1) for entry in value]
    if isinstance(value, dict):
        return {_LONE_SURROGATE.sub("\ufffd", key): _packable(entry, depth - 1) for key, entry in value.items()}
    return value


def _skip_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
