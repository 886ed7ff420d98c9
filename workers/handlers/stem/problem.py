"""A problem of natural science, whichever way its row was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from workers.graders.choice import LETTERS
from workers.graders.quantity import Leeway


class Kind(StrEnum):
    """How an answer is compared."""

    CHOICE = "choice"
    """With the options, by letter or by text (`graders/choice.py`)."""
    VALUE = "value"
    """By its number and unit (`graders/quantity.py`)."""
    TEXT = "text"
    """As a name or a term, with its alternatives (`graders/short_text.py`)."""
    FORMULA = "formula"
    """By its mathematical value (`graders/math_grader.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with what is right."""

    kind: Kind
    question: str
    answers: tuple[str, ...]
    """What is right; each on its own. At least one; of a choice its text, or its letter where the options stand in the question."""
    options: tuple[str, ...] = ()
    """Of a choice, in the order in which they are shown; empty where they stand in the question."""
    right: int = -1
    """Of a choice: the place of the right option."""
    unit: str = ""
    """Of a value: what it is asked in."""
    leeway: Leeway = field(default_factory=Leeway)
    """Of a value."""

    def asked(self) -> str:
        """The problem as the model reads it."""
        return f"{self.question}\n\n{self._options()}{self._wish()}"

    def gold(self) -> str:
        """What must score, in a box."""
        match self.kind:
            case Kind.CHOICE:
                said = LETTERS[self.right]
            case Kind.VALUE:
                said = f"{self.answers[0]} {self.unit}".strip()
            case Kind.TEXT | Kind.FORMULA:
                said = self.answers[0]
        return rf"\boxed{{{said}}}"

    def _options(self) -> str:
        lines = [f"{letter}. {option}\n" for letter, option in zip(LETTERS, self.options, strict=False)]
        return "".join((*lines, "\n")) if lines else ""

    def _wish(self) -> str:
        match self.kind:
            case Kind.CHOICE:
                return "Answer with the letter of the right option."
            case Kind.VALUE if self.unit:
                return f"Answer with a number and its unit, in {self.unit}."
            case Kind.VALUE:
                return "Answer with a number, and its unit if it has one."
            case Kind.TEXT:
                return "Answer with the name or term alone."
            case Kind.FORMULA:
                return "Answer with the formula alone."
