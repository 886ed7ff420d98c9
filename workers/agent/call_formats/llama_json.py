"""`<|python_tag|>{"name": ..., "parameters": {...}}`, more of them after `;`: Llama 3. The tag may be missing where an answer begins."""

from __future__ import annotations

import re

from workers.agent.call_formats.base import TRUNCATED, CallError, Item, Reader
from workers.agent.call_formats.values import decode_at

_BARE = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')
_ENDS = ("<|python_end|>", "<|eom_id|>", "<|eot_id|>")


class LlamaJsonReader(Reader):
    """JSON objects after a tag, or bare ones at the start; the syntax has no closing tag, so a fault reaches to the end of the text."""

    marks = ("<|python_tag|>", "<|python_start|>")

    def unmarked(self, start: int) -> tuple[list[Item], int]:
        """A bare object is a call if it has arguments or names a tool: an answer may be JSON with a name in it."""
        if not _BARE.match(self.text, start):
            return [], start
        try:
            value, _ = decode_at(self.text, self.skip_blanks(start))
        except (ValueError, RecursionError):
            return self._objects(start)
        name, arguments = _parts_of(value)
        is_call = arguments is not None or (isinstance(name, str) and self.tools is not None and name.strip() in self.tools)
        return self._objects(start) if is_call else ([], start)

    def read(self, start: int) -> tuple[list[Item], int]:
        return self._objects(self.text.index(">", start) + 1)

    def _objects(self, place: int) -> tuple[list[Item], int]:
        text = self.text
        items: list[Item] = []
        place = self.skip_blanks(place)
        while True:
            try:
                value, end = decode_at(text, place)
            except (ValueError, RecursionError) as error:
                return [*items, self.unended(f"the call is not valid JSON: {error}")], len(text)
            items.extend(self._calls_of(value))
            place = self.skip_blanks(end)
            for ending in _ENDS:
                if text.startswith(ending, place):
                    return items, place + len(ending)
            awaits_more = place < len(text) and text[place] in ";,"
            if awaits_more:
                place = self.skip_blanks(place + 1)
            if place == len(text):
                return ([*items, TRUNCATED] if awaits_more and self.truncated else items), place
            if text[place] != "{":
                return items, place

    def _calls_of(self, value: object) -> list[Item]:
        return [self._call_of(entry) for entry in value] if isinstance(value, list) and value else [self._call_of(value)]

    def _call_of(self, value: object) -> Item:
        if not isinstance(value, dict):
            return CallError("malformed", 'expected a JSON object with "name" and "parameters"')
        return self.call(*_parts_of(value))


def _parts_of(value: object) -> tuple[object, object]:
    """Name and arguments, as they stand in one of the forms that the family writes."""
    if not isinstance(value, dict):
        return None, None
    inner = value.get("function")
    source = inner if isinstance(inner, dict) else value
    name = inner if isinstance(inner, str) and "name" not in value else source.get("name")
    return name, source.get("parameters", source.get("arguments"))
