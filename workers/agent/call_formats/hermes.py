"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Qwen, Hermes and many others."""

from __future__ import annotations

import json
import re

from workers.agent.call_formats.base import TRUNCATED, CallError, Item, Reader
from workers.agent.call_formats.values import decode_at
from workers.llm import chatml

_TAGS = "|".join(map(re.escape, (chatml.CALL_OPEN, chatml.CALL_CLOSE, chatml.THINK_OPEN, chatml.THINK_CLOSE)))
_STRING = r'"(?:[^"\\]+|\\(?:.|\Z))*+(?:"|\Z)'
_PYTHON_STRING = r"'(?:[^'\\]+|\\(?:.|\Z))*+(?:'|\Z)"
_OUTSIDE_STRINGS = re.compile(f"{_STRING}|({_TAGS})", re.DOTALL)
_OUTSIDE_PYTHON_STRINGS = re.compile(f"{_STRING}|{_PYTHON_STRING}|({_TAGS})", re.DOTALL)


class HermesReader(Reader):
    """JSON objects between tags; several in one block, or a list of them, are several calls."""

    marks = (chatml.CALL_OPEN, chatml.CALL_CLOSE)
    closing = chatml.CALL_CLOSE

    def read(self, start: int) -> tuple[list[Item], int]:
        text = self.text
        items: list[Item] = []
        place = first = self.skip_blanks(start + len(chatml.CALL_OPEN))
        while True:
            if place == len(text):
                return [*items, self.unended("the call is empty")], place
            try:
                value, end = decode_at(text, place)
            except (ValueError, RecursionError) as error:
                item, end = self._unreadable(start, place, error)
                return [*items, item], end
            items.extend(self._calls_of(value))
            place = self.skip_blanks(end)
            if text.startswith(chatml.CALL_CLOSE, place):
                return items, place + len(chatml.CALL_CLOSE)
            if text.startswith(chatml.CALL_OPEN, place):
                return items, place
            if place == len(text) or (self.truncated and chatml.CALL_CLOSE.startswith(text[place:])):
                # The closing tag may have been the stop string; a text cut by its budget may have lost more than the tag.
                return ([*items[:-1], TRUNCATED] if self.truncated else items), len(text)
            if text[place] not in "{[":
                why = f"expected {chatml.CALL_CLOSE} after the JSON object, got {text[place : place + 20]!r}: nothing of this block was run"
                fault, end = self._fault(why, start, first, _OUTSIDE_STRINGS)
                return [fault], end

    def _calls_of(self, value: object) -> list[Item]:
        return [self._call_of(entry) for entry in value] if isinstance(value, list) and value else [self._call_of(value)]

    def _call_of(self, value: object) -> Item:
        if not isinstance(value, dict):
            return CallError("malformed", 'expected one JSON object with "name" and "arguments" between the tags')
        inner = value.get("function")
        source = inner if isinstance(inner, dict) and "name" not in value else value
        return self.call(source.get("name"), source.get("arguments", source.get("parameters")))

    def _unreadable(self, start: int, place: int, error: Exception) -> tuple[CallError, int]:
        """The fault of a block that is no JSON from `place` on, and where to go on."""
        why, is_python = str(error) or type(error).__name__, False
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} at character {error.pos - place}"
            is_python = self.text.startswith("'", error.pos)
            if self.truncated and (error.pos >= len(self.text) or error.msg.startswith("Unterminated string")):
                return TRUNCATED, len(self.text)
        message = (
            f'the call is not valid JSON: {why}. Write one JSON object with "name" and "arguments" between '
            f"{chatml.CALL_OPEN} and {chatml.CALL_CLOSE}"
        )
        return self._fault(message, start, place, _OUTSIDE_PYTHON_STRINGS if is_python else _OUTSIDE_STRINGS)

    def _fault(self, message: str, start: int, place: int, pieces: re.Pattern[str]) -> tuple[CallError, int]:
        """The fault of the block at `start`, whose text is looked at from `place` on, and where to go on.

        Its strings hide what they hold. A block opened inside it belongs to it if both are closed; if not, it is the next call, and this
        one was left open. One right behind a quote is in a string all the same: a quote is missing further up.
        """
        tag = next((piece for piece in pieces.finditer(self.text, place) if piece.group(1)), None)
        if tag is None or (tag.group(1) == chatml.CALL_OPEN and self.text[tag.start() - 1] in "\"'"):
            return self.unended(f"{message}. What follows was not read"), len(self.text)
        end = tag.end() if tag.group(1) == chatml.CALL_CLOSE else tag.start()
        if tag.group(1) == chatml.CALL_OPEN:
            end = self.end_of_block(start) or end
        return CallError("malformed", message), end
