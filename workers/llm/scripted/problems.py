"""The problem bank: where the scripted policy knows answers from.

A file holds JSON lines with `question` and `answer`, at the top or under `data`, and perhaps scripts of what is to be said (`acts.py`);
its first line may be a head (an object with neither). A question is found inside a prompt wherever it stands, since handlers wrap it in
instructions of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from workers.llm.scripted.acts import Script, read_script

KEY_CHARS = 24
"""A question is looked up by its first characters: one dictionary look-up a place of the text."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its right answer, both as text."""

    question: str
    answer: str
    right: Script = ()
    """What is said to solve it; empty = the policy makes it up around the answer."""
    wrong: tuple[Script, ...] = ()
    """What is said by members that fail, one of them each."""


class ProblemBank:
    """Questions by their beginning. Empty banks are fine: the policy then knows no answer."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self._by_key: dict[str, list[Problem]] = {}
        self._key_lengths: list[int] = []
        for problem in problems:
            question = problem.question.strip()
            if not question:
                raise ValueError("expected a question, got an empty text")
            self._by_key.setdefault(question[:KEY_CHARS], []).append(replace(problem, question=question))
        for candidates in self._by_key.values():
            candidates.sort(key=lambda problem: len(problem.question), reverse=True)
        self._key_lengths = sorted({len(key) for key in self._by_key}, reverse=True)

    def __len__(self) -> int:
        return sum(len(candidates) for candidates in self._by_key.values())

    def find(self, text: str) -> Problem | None:
        """The first question that stands in `text`; the longest of those that begin at one place."""
        for start in range(len(text)):
            for length in self._key_lengths:
                for problem in self._by_key.get(text[start : start + length], ()):
                    if text.startswith(problem.question, start):
                        return problem
        return None


def read_problems(paths: Iterable[Path]) -> list[Problem]:
    """All problems of some JSON-lines files.

    Raises:
        ValueError: a line is no problem; names file and line.
    """
    problems = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: expected a JSON object: {error}") from error
            try:
                problem = _problem(record)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
            if problem is not None:
                problems.append(problem)
            elif number > 1 or not isinstance(record, dict):
                raise ValueError(f"{path}:{number}: expected `question` and `answer`, got {line[:80]!r}")
    return problems


def _problem(record: object) -> Problem | None:
    match record:
        case {"question": str(question), "answer": str() | int() | float() as answer, **rest} if question.strip():
            right = read_script(rest["right"]) if rest.get("right") else ()
            wrong = rest.get("wrong") or []
            if not isinstance(wrong, list):
                raise ValueError(f"expected a list of scripts, got {wrong!r:.80}")
            return Problem(question.strip(), str(answer).strip(), right, tuple(read_script(each) for each in wrong))
        case {"data": dict(inner)}:
            return _problem(inner)
        case _:
            return None
