"""What cases of shells and kernels say of a text: `stdout`, `stdout_contains`, `stdout_count` and so on, for any name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.cases.case import Difference, shown, text_of

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def comparable(text: str) -> str:
    """A text as expectations write it: plain line ends, no colours, no line end at the very end."""
    return _ESCAPES.sub("", text.replace("\r\n", "\n")).rstrip("\n")


def text_differences(name: str, expect: Mapping[str, Any], found: str) -> list[Difference]:
    """How `found` differs from the expectations whose names begin with `name`."""
    text = comparable(found)
    different: list[Difference] = []

    def note(what: str, expected: object, came: object) -> None:
        different.append(Difference(what, expected, came))

    if name in expect or f"{name}_gen" in expect:
        wanted = comparable(text_of(expect, name))
        if text != wanted:
            note(name, wanted, text)
    for part in expect.get(f"{name}_contains", ()):
        if part not in found.replace("\r\n", "\n"):
            note(f"{name} contains", part, text)
    for part in expect.get(f"{name}_not_contains", ()):
        if part in text:
            note(f"{name} does not contain", part, text)
    if f"{name}_regex" in expect and not re.search(expect[f"{name}_regex"], text):
        note(f"{name} matches", expect[f"{name}_regex"], text)
    for part, times in expect.get(f"{name}_count", {}).items():
        if text.count(part) != times:
            note(f"{name} has {part!r}", f"{times} times", text.count(part))
    if f"{name}_len" in expect and len(text) != expect[f"{name}_len"]:
        note(f"characters of {name}", expect[f"{name}_len"], len(text))
    if f"{name}_lines" in expect and len(text.split("\n")) != expect[f"{name}_lines"]:
        note(f"lines of {name}", expect[f"{name}_lines"], len(text.split("\n")))
    if f"{name}_any_of" in expect and text not in map(comparable, expect[f"{name}_any_of"]):
        note(f"{name} is one of", expect[f"{name}_any_of"], text)
    if f"{name}_tail_contains" in expect and expect[f"{name}_tail_contains"] not in text[-200:]:
        note(f"the end of {name} contains", expect[f"{name}_tail_contains"], shown(text[-200:]))
    return different


def is_among(found: object, expected: object) -> bool:
    """Whether a value is the expected one, one of a list, or, for `{"not": x}`, another than x."""
    if isinstance(expected, Mapping):
        return bool(found != expected["not"])
    return found in expected if isinstance(expected, list) else found == expected
