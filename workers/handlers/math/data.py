"""Loading problems: one JSON object a line, in the layout of this package's own files.

    {"header": {"name": ..., "licence": ..., "version": 1, "worked_out": true}}      first line, optional
    {"id": ..., "question": ..., "answer": ..., "source": ..., "worked_out": false}

`id`, `question` and `answer` are texts that must be there, `source` may be missing. `worked_out` (see `graders.Tolerance`) is the header's
where a problem has none of its own. Every fault names the file and the line; a file with one is not used in part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pipeline.errors import InvalidRequest

SHIPPED = ("arithmetic", "competition")
"""The sets in this package: word problems and arithmetic made with reasoning-gym, and competition-style problems of our own."""
MAX_QUESTION_CHARS = 20_000
MAX_ANSWER_CHARS = 20_000
_FIELDS = frozenset(("id", "question", "answer", "source", "worked_out"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with its answer."""

    id: str
    """Unique in its file, and stable: a prompt's id is made from it."""
    question: str
    answer: str
    """The reference answer, in LaTeX or plain text, without a box."""
    source: str = ""
    worked_out: bool = False
    """Whether the answer must be worked out; an expression to be computed does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """The problems of a file, in order."""

    name: str
    problems: tuple[Problem, ...]
    header: Mapping[str, Any]  # what the file says about itself, as JSON
    """Empty when the file has none."""


class BadProblems(InvalidRequest):
    """A file of problems that cannot be used; the message names the line and what is wrong with it."""


def load_shipped(name: str) -> ProblemSet:
    """A set that ships in this package.

    Raises:
        BadProblems: there is no such set.
    """
    if name not in SHIPPED:
        raise BadProblems(f"no set of problems {name!r}; there are: {', '.join(SHIPPED)}", field="problems")
    return load_problems(files(__package__) / "problems" / f"{name}.jsonl")


def load_problems(path: Path | Traversable) -> ProblemSet:
    """The problems of a file.

    Raises:
        BadProblems: it cannot be read, is empty, or has a line that is no problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise BadProblems(f"{path}: {broken}", field="problems") from broken
    header: Mapping[str, Any] = {}
    problems: list[Problem] = []
    lines_of_ids: dict[str, int] = {}
    for number, found in _objects(path, text):
        if not problems and not header and set(found) == {"header"} and isinstance(found["header"], dict):
            header = found["header"]
            continue
        problem = _problem(found, f"{path}:{number}", worked_out=bool(header.get("worked_out", False)))
        if problem.id in lines_of_ids:
            raise BadProblems(f"{path}:{number}: the id {problem.id!r} is already on line {lines_of_ids[problem.id]}", field="id")
        lines_of_ids[problem.id] = number
        problems.append(problem)
    if not problems:
        raise BadProblems(f"{path}: no problem in it", field="problems")
    return ProblemSet(name=str(header.get("name", Path(path.name).stem)), problems=tuple(problems), header=header)


def _objects(path: Path | Traversable, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as broken:
            raise BadProblems(f"{path}:{number}: no JSON: {broken.msg} at column {broken.colno}", field="problems") from broken
        if not isinstance(found, dict):
            raise BadProblems(f"{path}:{number}: expected an object, found {type(found).__name__}", field="problems")
        yield number, found


def _problem(found: Mapping[str, Any], place: str, *, worked_out: bool) -> Problem:
    unknown = sorted(set(found) - _FIELDS)
    if unknown:
        raise BadProblems(f"{place}: unknown fields {', '.join(unknown)}; known are {', '.join(sorted(_FIELDS))}", field="problems")
    demanded = found.get("worked_out", worked_out)
    if not isinstance(demanded, bool):
        raise BadProblems(f"{place}: expected true or false, found {demanded!r}", field="worked_out")
    return Problem(
        id=_text(found, "id", place, 200),
        question=_text(found, "question", place, MAX_QUESTION_CHARS),
        answer=_text(found, "answer", place, MAX_ANSWER_CHARS),
        source=_text(found, "source", place, 200) if "source" in found else "",
        worked_out=demanded,
    )


def _text(found: Mapping[str, Any], name: str, place: str, longest: int) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadProblems(f"{place}: expected a text that is not empty, found {value!r:.80}", field=name)
    if len(value) > longest:
        raise BadProblems(f"{place}: {len(value)} characters, at most {longest} are taken", field=name)
    return value
