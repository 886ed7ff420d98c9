"""Where the package's scorers say what is not so (version 0.1.25), and what is said in their place.

game_of_life_halting    compares `bool(text)`, so that every text is right; here the texts are compared
complex_arithmetic      `min(1.0, nan)` is 1.0, so that `nan` is right; here it is wrong
arc_agi, rearc          compare the board with one of tuples, which no entry has that was kept as JSON; here it gets them back
composite               hands over to the data set of the entry, and so do these
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Scorer = Callable[[str, dict[str, Any]], Any]  # entries are JSON objects; what a scorer returns is checked by the caller

_BOARDS = ("arc_agi", "rearc")


def scored(dataset: str, score_answer: Scorer, answer: str, entry: dict[str, Any]) -> Any:
    """The score of an answer.

    Args:
        dataset: the name of the one that made the entry.
        score_answer: the package's.
    """
    if dataset == "game_of_life_halting":
        return 1.0 if answer.strip().casefold() == str(entry["answer"]).strip().casefold() else 0.0
    if dataset == "complex_arithmetic" and "nan" in answer.casefold():
        return 0.0
    if dataset in _BOARDS:
        metadata = entry["metadata"]
        entry = {**entry, "metadata": {**metadata, "output": tuple(tuple(line) for line in metadata["output"])}}
    return score_answer(answer, entry)
