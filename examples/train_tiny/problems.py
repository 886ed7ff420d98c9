"""What the model is asked: two numbers of two digits, and a word for what to do with them.

A problem is a row of the task `math`: a question and its answer. Which problems are held out is decided by their numbers, so no seed, size
or order can make a training row of one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Word = Literal["plus", "minus", "times"]
SIGNS: Mapping[Word, str] = {"plus": "+", "minus": "-", "times": "*"}
"""What each word means: nobody tells the model."""
WORDS: tuple[Word, ...] = get_args(Word)
HELD_OUT = 200
_NUMBERS = range(10, 100)


@dataclass(frozen=True, slots=True)
class Problem:
    """One of them."""

    left: int
    word: Word
    right: int

    @property
    def question(self) -> str:
        return f"What is {self.left} {self.word} {self.right}?"

    def value(self, sign: str) -> int:
        """What the two numbers give with some sign."""
        match sign:
            case "+":
                return self.left + self.right
            case "-":
                return self.left - self.right
            case _:
                return self.left * self.right

    @property
    def answer(self) -> int:
        return self.value(SIGNS[self.word])

    @property
    def is_held_out(self) -> bool:
        """One pair of numbers in eleven."""
        return (self.left * 7 + self.right) % 11 == 0

    def row(self) -> dict[str, str]:
        """As the task `math` takes it."""
        return {"question": self.question, "answer": str(self.answer)}


def some_problems(rng: random.Random, *, held_out: bool) -> Iterator[Problem]:
    """Problems without end, of the one kind or the other."""
    while True:
        problem = Problem(rng.choice(_NUMBERS), rng.choice(WORDS), rng.choice(_NUMBERS))
        if problem.is_held_out == held_out:
            yield problem


def held_out_problems() -> list[Problem]:
    """The fixed ones that every run is measured by, all different."""
    found: dict[Problem, None] = {}
    for problem in some_problems(random.Random(20_260_401), held_out=True):
        found.setdefault(problem)
        if len(found) == HELD_OUT:
            return [*found]
    raise AssertionError("problems have no end")


def training_rows(seed: int, count: int) -> list[dict[str, str]]:
    """Rows that a run is fed with."""
    rng = random.Random(f"training/{seed}")
    problems = some_problems(rng, held_out=False)
    return [next(problems).row() for _ in range(count)]
