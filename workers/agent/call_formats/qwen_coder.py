"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder.

Values are plain text: nothing is escaped. They are made numbers, lists and the like where the tool's schema asks for it; a value that is
not what the schema says is passed on as text, for the tool set to complain of. Since a value may hold anything, also calls, nothing
after one that has no end is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.messages import Json
from workers.agent.call_formats.base import CallError, Item, Reader, shown
from workers.agent.call_formats.values import decode
from workers.llm import chatml

_FUNCTION = "<function="
_HEAD = re.compile(r"<function=([^<>\n]*)>")
_KEY = re.compile(r"<parameter=([^<>\n]*)>(?:\r?\n)?")
_END = r"</parameter>(?=\s*(?:<parameter=|</function>))"
_END_OF_LINES, _END_OF_VALUE = re.compile(r"\r?\n" + _END), re.compile(r"(?:\r?\n)?" + _END)
_BEGIN = re.compile(r"<(?:parameter|function)=")
_KEY_INSIDE = re.compile(r"\n<parameter=[^>\n]*>")
_NEXT = re.compile("|".join(map(re.escape, (_FUNCTION, chatml.CALL_OPEN, chatml.CALL_CLOSE, chatml.THINK_OPEN, chatml.THINK_CLOSE))))
_NO_FUNCTION = f"expected {_FUNCTION}NAME> between the tags"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class QwenCoderReader(Reader):
    """Functions in blocks, several in one block too; a block's tags may be missing."""

    marks = (chatml.CALL_OPEN, _FUNCTION, chatml.CALL_CLOSE)
    closing = chatml.CALL_CLOSE

    def __init__(self, text: str, tools: Mapping[str, Json] | None, *, truncated: bool) -> None:
        super().__init__(text, tools, truncated=truncated)
        self._ends_of_values, self._ends_of_lines = _Ahead(_END_OF_VALUE, text), _Ahead(_END_OF_LINES, text)
        self._keys_inside, self._begins = _Ahead(_KEY_INSIDE, text), _Ahead(_BEGIN, text)

    def read(self, start: int) -> tuple[list[Item], int]:
        text = self.text
        is_block = text.startswith(chatml.CALL_OPEN, start)
        place = self.skip_blanks(start + len(chatml.CALL_OPEN)) if is_block else start
        items: list[Item] = []
        while text.startswith(_FUNCTION, place):
            item, end, is_whole = self._function(place, start if is_block else None)
            items.append(item)
            if not is_whole:
                return items, end
            place = self.skip_blanks(end)
        if not is_block:
            return items, place
        if text.startswith(chatml.CALL_CLOSE, place):
            place += len(chatml.CALL_CLOSE)
        elif not items or place < len(text):
            why = _NO_FUNCTION if not items else f"expected {chatml.CALL_CLOSE} after </function>: nothing of this block was run"
            item, place = self._fault(why, place, start, in_value=False)
            return [item], place
        if not items:
            items.append(CallError("malformed", "the call is empty"))
        return items, place

    def _function(self, start: int, block: int | None) -> tuple[Item, int, bool]:
        """One function, where it ends, and whether reading can go on there."""
        head = _HEAD.match(self.text, start)
        if head is None:
            return *self._fault("the name of the function has no end", start + len(_FUNCTION), block, in_value=False), False
        name = head.group(1).strip()
        arguments: dict[str, object] = {}
        faults: list[CallError] = []
        place = self.skip_blanks(head.end())
        while (key := _KEY.match(self.text, place)) is not None:
            parameter = key.group(1).strip()
            end = self._end_of_value(key)
            inside = self._keys_inside.first_from(key.end() - 1)  # the key took the line end
            if end is None or (inside is not None and inside.start() < end.start()):
                message = f"parameter {shown(parameter)} of {shown(name)} has no </parameter>"
                return *self._fault(message, key.end(), block, in_value=True), False
            if not parameter:
                faults.append(CallError("bad_arguments", f"a parameter of {shown(name)} has no name"))
            if parameter in arguments:
                faults.append(CallError("bad_arguments", f"parameter {shown(parameter)} of {shown(name)} stands twice"))
            arguments[parameter] = self._typed(name, parameter, self.text[key.end() : end.start()])
            place = self.skip_blanks(end.end())
        if not self.text.startswith("</function>", place):
            return *self._fault(f"function {shown(name)} has no </function>", place, block, in_value=False), False
        return (faults[0] if faults else self.call(name, arguments)), place + len("</function>"), True

    def _end_of_value(self, key: re.Match[str]) -> re.Match[str] | None:
        """Where a value ends. One that begins on a line of its own ends on one, if the next end that does is its own."""
        end = self._ends_of_values.first_from(key.end())
        if end is None or not key.group().endswith("\n"):
            return end
        on_line = self._ends_of_lines.first_from(key.end() - 1)  # an empty value shares its line end with the key
        if on_line is None or on_line.start() <= end.start():
            return end
        begin = self._begins.first_from(end.end())
        return end if begin is not None and begin.start() < on_line.start() else on_line

    def _fault(self, message: str, place: int, block: int | None, *, in_value: bool) -> tuple[Item, int]:
        """The fault found at `place` in the block that begins at `block`, if there is one, and where to go on."""
        end = self.end_of_block(block) if block is not None else None
        if end is None and not in_value:
            following = _NEXT.search(self.text, place)
            end = following.start() if following is not None else None
        if end is None:
            return self.unended(f"{message}; what follows was not read"), len(self.text)
        return CallError("malformed", message), end

    def _typed(self, tool: str, parameter: str, value: str) -> object:
        """A value as the tool's schema has it, or the text when it is not."""
        schema = (self.tools or {}).get(tool, {}).get("properties")
        declared = schema.get(parameter) if isinstance(schema, Mapping) else None
        kind = declared.get("type") if isinstance(declared, Mapping) else None
        kinds = [str(one) for one in kind] if isinstance(kind, list | tuple) else [str(kind or "string")]
        if "string" in kinds or not all(one in _TYPES for one in kinds):
            return value
        bare = value.strip()
        try:
            read = decode(_PYTHON_WORDS.get(bare, bare))
        except (ValueError, RecursionError):
            return value
        fits = isinstance(read, tuple(type_ for one in kinds for type_ in _TYPES[one]))
        return read if fits and (not isinstance(read, bool) or "boolean" in kinds) else value


class _Ahead:
    """The first match from a place on. One answer holds for all places up to it, so that looking again and again costs one look."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._pattern, self._text = pattern, text
        self._asked_from = len(text) + 1
        self._found: re.Match[str] | None = None

    def first_from(self, place: int) -> re.Match[str] | None:
        if place < self._asked_from or (self._found is not None and self._found.start() < place):
            self._asked_from, self._found = place, self._pattern.search(self._text, place)
        return self._found
