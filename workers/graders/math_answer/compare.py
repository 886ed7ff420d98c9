"""Whether an answer is the reference answer: the layers in order, cheapest first.

Not-a-number, the same text, choice letters, words, long plain numbers; then both sides are read into shapes and the shapes compared.
Shapes are strict: a set is no tuple, a closed end is no open end, a column is no row, one value of two is not both. What neither reads
nor is decided here is left `undecided` for a computer algebra system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from workers.graders.math_answer.answer import Answer, NamedSet
from workers.graders.math_answer.equality import STRICT, Tolerance
from workers.graders.math_answer.reading import read_answer
from workers.graders.math_answer.shapes import same_answer
from workers.graders.math_answer.surface import surface
from workers.graders.math_answer.tokens import FUNCTIONS, GREEK, spellings, tokenize
from workers.graders.math_answer.unreadable import Unreadable
from workers.graders.math_answer.words import (
    choice_letter,
    choice_letters,
    has_choice_form,
    is_not_a_number,
    is_words,
    number_in_words,
    opened,
    plain_text,
)

__all__ = ["Decision", "Tolerance", "compare_answers"]

MAX_ANSWER_CHARS = 1_000
"""A longer answer is read only when it is a plain number or the reference is as long; no honest answer needs more."""

_LONG_NUMBER = re.compile(r"^([+-]?)\s*0*(\d[\d, ]*)$")
_DECIMAL = re.compile(r"^\s*[+-]?\d*\.\d+\s*$")
_HALF_DAY = re.compile(r"\b([ap])\.\s?m\b\.?")
_PLAIN_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_SETS_IN_WORDS = {"no solution": "empty", "all reals": "R"}
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\*?\}")
_A_WORD = re.compile(r"[a-z]{2,}")
_FORMULA = re.compile(r"[\\{}^_=+*]")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Decision:
    """What the comparison came to."""

    verdict: Literal["same", "different", "unreadable", "undecided"]
    """`unreadable`: the answer is nothing that could be compared; `undecided`: a more capable reader may try."""
    reason: str
    """Which layer decided, in one word or two."""


def compare_answers(gold: str, answer: str, tolerance: Tolerance = STRICT) -> Decision:
    """Compares two answers, without their boxes.

    Bounded: the work depends on the first `MAX_ANSWER_CHARS` characters only, or on the reference's own length when that is longer.
    """
    longest = max(MAX_ANSWER_CHARS, 2 * len(gold))
    if is_not_a_number(answer[:MAX_ANSWER_CHARS]):
        return Decision("different", "not_a_number")
    if len(answer) > longest and not _DECIMAL.match(answer):
        numbers = _long_number(gold), _long_number(answer)
        if None not in numbers:
            return _decided(numbers[0] == numbers[1], "digits")
        return Decision("unreadable", "too_long")
    gold_text, answer_text = surface(gold), surface(answer)
    if not answer_text:
        return Decision("unreadable", "empty")
    if _BLANKS.sub("", gold_text) == _BLANKS.sub("", answer_text) or _same_phrase(gold_text, answer_text):
        return Decision("same", "same_text")
    by_words = _compare_words(gold_text, answer_text)
    if by_words is not None:
        return by_words
    numbers = _long_number(gold_text), _long_number(answer_text)
    if None not in numbers and max(len(text) for text in (gold_text, answer_text)) > 40:
        return _decided(numbers[0] == numbers[1], "digits")
    return _compare_shapes(gold_text, answer_text, tolerance)


def _same_phrase(gold: str, answer: str) -> bool:
    """Whether both are the same words and numbers, however they are set: a date, a time of day. Formulas are no phrases."""
    phrases = [_HALF_DAY.sub(r"\1m", opened(text).lower()) for text in (gold, answer)]
    return phrases[0] == phrases[1] and _A_WORD.search(phrases[0]) is not None and _FORMULA.search(phrases[0]) is None


def _decided(same: bool, reason: str) -> Decision:
    return Decision("same" if same else "different", reason)


def _compare_words(gold: str, answer: str) -> Decision | None:
    """Choices and words; None when neither side is one."""
    if has_choice_form(gold):
        return _decided(choice_letter(answer) == choice_letter(gold), "choice")
    gold_choices = choice_letters(gold)
    if gold_choices is not None and (answer_choices := choice_letters(answer)) is not None:
        return _decided(gold_choices == answer_choices, "choices")
    if not is_words(gold) and not is_words(answer):
        return None
    gold_words, answer_words = plain_text(gold), plain_text(answer)
    if gold_words == answer_words:
        return Decision("same", "same_words")
    if any(words in _SETS_IN_WORDS or number_in_words(words) is not None for words in (gold_words, answer_words)):
        return None
    return Decision("different", "other_words")


def _long_number(text: str) -> str | None:
    """Sign and digits of a whole number of any length, without separators."""
    match = _LONG_NUMBER.match(text.strip())
    return None if match is None else match.group(1).replace("+", "") + re.sub(r"[, ]", "", match.group(2))


def _compare_shapes(gold: str, answer: str, tolerance: Tolerance) -> Decision:
    gold_readings, _ = _readings(gold, is_reference=True)
    answer_readings, answer_fault = _readings(answer, is_reference=False)
    undecided = False
    for expected in gold_readings:
        for found in answer_readings:
            same = same_answer(expected, found, tolerance)
            if same:
                return Decision("same", "same_value")
            undecided |= same is None
    if answer_fault is not None and not answer_readings and (answer_fault.final or _has_words(answer)):
        return Decision("unreadable", "not_an_answer")
    if tolerance.worked_out and (undecided or not answer_readings):
        return Decision("unreadable", "not_worked_out")
    if undecided or not gold_readings or not answer_readings:
        return Decision("undecided", "not_computed" if gold_readings and answer_readings else "not_read")
    return Decision("different", "other_value")


def _readings(text: str, *, is_reference: bool) -> tuple[list[Answer], Unreadable | None]:
    """Every honest reading of a text, and why there is none if there is none."""
    words = plain_text(text) if is_words(text) else ""
    if words in _SETS_IN_WORDS:
        return [NamedSet(_SETS_IN_WORDS[words])], None
    if (spelled := number_in_words(words)) is not None:
        text = str(spelled)
    found: list[Answer] = []
    fault: Unreadable | None = None
    for spelling in spellings(text):
        for letter_units in (False,) if is_reference else (False, True):
            try:
                answer = read_answer(tokenize(text, spelling), letter_units=letter_units)
            except Unreadable as unreadable:
                fault = fault or unreadable
            else:
                if answer not in found:
                    found.append(answer)
    return found, fault


def _has_words(text: str) -> bool:
    """Whether plain words stand in a formula; a reader that guesses would pick a number out of a sentence."""
    return any(word not in FUNCTIONS and word not in GREEK for word in _PLAIN_WORD.findall(_ENVIRONMENT.sub(" ", text))) or "__" in text
