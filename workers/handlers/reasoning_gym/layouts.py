"""The rows that the task `reasoning_gym` reads.

    an entry        question, answer, metadata: as the package makes and exports it; `metadata.source_dataset` or `dataset` names the data
                    set, `config` what its scorer reads of its settings. A few data sets have no answer
    to be made      dataset, seed, index; `config`: the data set's settings. INIT makes the entry, and EVAL makes the same again

Both may hold `id`, `source` and `meta`. The question of a row that is to be made is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.graders.reasoning_gym.puzzle import Puzzle
from workers.handlers.task_data import BadTaskData, Layout, Row, json_of, only_known, text_of

MAX_CHARS = 200_000
MAX_INDEX = 10**9
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MORE = frozenset(("id", "source", "meta", "config"))
_ENTRY = frozenset(("question", "answer", "metadata", "dataset")) | _MORE
_TO_BE_MADE = frozenset(("dataset", "seed", "index")) | _MORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One puzzle, and its question where the row has it."""

    puzzle: Puzzle | None
    """None of a row of `QUESTIONS`, which only asks."""
    question: str = ""
    """Empty as long as the puzzle is not made."""


def _entry(row: Row, place: str) -> Problem:
    only_known(row, _ENTRY, place)
    question = text_of(row, "question", place, longest=MAX_CHARS)
    answer = row.get("answer")
    if answer is not None and (not isinstance(answer, str) or len(answer) > MAX_CHARS):
        raise BadTaskData(f"{place}: expected a text or none, found {answer!r:.80}", field="answer")
    metadata = _map(row, "metadata", place)
    name = row.get("dataset") or metadata.get("source_dataset")
    entry = {"question": question, "answer": answer, "metadata": metadata}
    return Problem(puzzle=Puzzle(dataset=_dataset(name, place), config=_config(row, place), entry=entry), question=question)


def _to_be_made(row: Row, place: str) -> Problem:
    only_known(row, _TO_BE_MADE, place)
    numbers = {}
    for name, least in (("seed", 0), ("index", 0)):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INDEX:
            raise BadTaskData(f"{place}: expected a whole number from {least} to {MAX_INDEX}, found {value!r:.80}", field=name)
        numbers[name] = value
    puzzle = Puzzle(dataset=_dataset(row.get("dataset"), place), config=_config(row, place), seed=numbers["seed"], index=numbers["index"])
    return Problem(puzzle=puzzle)


def _dataset(name: object, place: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadTaskData(f"{place}: expected the name of a data set of reasoning-gym, found {name!r:.80}", field="dataset")
    return name


def _config(row: Row, place: str) -> Mapping[str, object]:
    if row.get("config") is None:
        return {}
    config = _map(row, "config", place)
    if "seed" in config:
        raise BadTaskData(f"{place}: the seed stands beside it", field="config")
    return config


def _map(row: Row, name: str, place: str) -> Mapping[str, object]:
    found = json_of(row, name, place)
    if not isinstance(found, Mapping):
        raise BadTaskData(f"{place}: expected a map, found {found!r:.80}", field=name)
    return found


def _question(row: Row, place: str) -> Problem:
    return Problem(puzzle=None, question=text_of(row, "question", place, longest=MAX_CHARS))


LAYOUTS: Sequence[Layout[Problem]] = (
    Layout(name="reasoning-gym", columns=frozenset(("question", "metadata")), read=_entry),
    Layout(name="to be made", columns=frozenset(("dataset", "seed", "index")), read=_to_be_made),
)
QUESTIONS: Sequence[Layout[Problem]] = (*LAYOUTS, Layout(name="question alone", columns=frozenset(("question",)), read=_question))
"""What can be asked, though perhaps not judged here: rows whose reward comes from outside."""
