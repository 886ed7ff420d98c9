"""A case: one small input with the right value, and what a check of it may find different."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

Json = dict[str, Any]  # what a JSON file holds; each area reads its own fields and says when one is missing


class BadCase(Exception):
    """A line of a case file that is no case, or asks for what its area does not know."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a case file."""

    id: str
    story: str
    """What happened, in words."""
    input: Json
    expect: Json
    danger: str = ""
    """Why it may only run inside limits; empty for a harmless one."""
    raw: str = field(default="", repr=False, compare=False)
    """The line itself."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One respect in which the product did not do what the case expects."""

    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.what}: expected {shown(self.expected)}, found {shown(self.found)}"


Check = Callable[[Case], Awaitable[list[Difference]]]
"""Runs one case through the product; an empty list is a pass."""
Area = Callable[[], AbstractAsyncContextManager[Check]]
"""Opens what the cases of an area share (a grader, a server) and gives their check."""
AreaBody = Callable[[], AsyncIterator[Check]]
"""An `Area` before `asynccontextmanager`."""


def shown(value: object, longest: int = 200) -> str:
    """A value on one line, cut in the middle."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split("\n"))
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


def read_cases(path: Path) -> Iterator[Case]:
    """The cases of a file, in order.

    Raises:
        BadCase: a line is no case; with its number.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                yield parse_case(line)
            except BadCase as bad:
                raise BadCase(f"{path}:{number}: {bad}") from None


def parse_case(line: str) -> Case:
    """The case that a line holds."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as broken:
        raise BadCase(f"no JSON: {broken}") from broken
    if not isinstance(found, dict):
        raise BadCase("expected an object")
    for name, kind in (("id", str), ("input", dict), ("expect", dict)):
        if not isinstance(found.get(name), kind):
            raise BadCase(f"`{name}` must be {'a text' if kind is str else 'an object'}, it is {shown(found.get(name))}")
    return Case(found["id"], str(found.get("story", "")), found["input"], found["expect"], str(found.get("danger", "")), line)


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """The text `name` of an input, or the one that `name`_gen describes: a prefix, a piece a number of times, a suffix."""
    if isinstance(fields.get(name), str):
        return cast(str, fields[name])
    made = fields.get(f"{name}_gen")
    if not isinstance(made, dict):
        raise BadCase(f"expected `{name}` or `{name}_gen`, found {sorted(fields)}")
    return str(made.get("prefix", "")) + str(made.get("repeat", "")) * int(made.get("times", 0)) + str(made.get("suffix", ""))
