"""Answers in words: choice letters, yes and no, no solution, names."""

from __future__ import annotations

import re

from workers.graders.math_answer.tokens import FUNCTIONS, GREEK, WORDS_NOT_PRODUCTS, cut_run

_UPRIGHT = re.compile(r"\\(?:text|mbox|hbox|textrm|textnormal|textit|textbf|textsf|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_COMMANDS_LEFT = re.compile(r"\\[A-Za-z]+")
_PUNCTUATION = re.compile(r"[\s.,;:!?\"'`(){}\[\]_\-]+")
_LEAD = re.compile(
    r"^(?:(?:so|thus|hence|therefore)\s+)?(?:the\s+)?(?:(?:final\s+|correct\s+)?(?:answer|result|solution)\s+is|it\s+is|its|it\s+s|there\s+(?:is|are|exists?))\s+"
)
_ARTICLES = frozenset(("the", "a", "an"))
_CHOICE_ALONE = re.compile(r"^\(?\s*([A-Za-z])\s*\)?[.:)]?$")
_CHOICE_LED = re.compile(r"^(?:\(\s*([A-J])\s*\)|([A-J])\s*[.:)(\u2013\-])\s*(\S.*)$", re.DOTALL)
_CHOICE_NAMED = re.compile(r"^(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?\s*:?\s*)\(?([A-J])\)?[.:]?$", re.IGNORECASE)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z])(?:\(([A-J])\)|([A-J])\s*[.:)])|\b(?:or|and)\s+\(?([A-J])\)?(?![A-Za-z])")
_CHOICES = re.compile(r"^[A-J](?:\s*(?:,|and|&|;)\s*[A-J])+$|^[A-J]{2,6}$")

_SAME = {
    "no solutions": "no solution", "no real solution": "no solution", "no real solutions": "no solution", "none": "no solution",
    "no such solution": "no solution", "no solution exists": "no solution", "no solutions exist": "no solution",
    "empty set": "no solution", "no integer solutions": "no solution", "no integer solution": "no solution", "emptyset": "no solution",
    "dne": "does not exist", "limit does not exist": "does not exist", "doesnt exist": "does not exist",
    "doesn t exist": "does not exist", "undefined": "undefined", "not defined": "undefined",
    "infinitely many": "infinitely many solutions", "infinite solutions": "infinitely many solutions",
    "infinite number of solutions": "infinitely many solutions", "all real numbers": "all reals", "all reals": "all reals",
    "all real": "all reals", "real numbers": "all reals", "every real number": "all reals", "any real number": "all reals",
    "set of all real numbers": "all reals", "set of real numbers": "all reals", "infty": "infinity", "positive infinity": "infinity",
    "negative infinity": "negative infinity", "divergent": "diverges", "cannot be determined": "not enough information",
    "can not be determined": "not enough information",
}  # fmt: skip
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_NEVER = frozenset(("nan", "not a number", "null", "none type", "n/a"))


def plain_text(surfaced: str) -> str:
    """The words of an answer, lower case, without commands, punctuation, articles and an opening such as `the answer is`."""
    text = _PUNCTUATION.sub(" ", _COMMANDS_LEFT.sub(lambda command: f" {command.group()[1:]} ", opened(surfaced))).strip().lower()
    text = " ".join(word for word in _LEAD.sub("", text).split() if word not in _ARTICLES)
    return _SAME.get(text, text)


def opened(surfaced: str) -> str:
    r"""The answer with `\text{...}` and the like opened, nested ones too; all other signs stay."""
    text = surfaced
    for _ in range(4):
        text, changed = _UPRIGHT.subn(r" \1 ", text)
        if not changed:
            break
    return " ".join(text.split())


def without_wrapping(surfaced: str) -> str:
    """The answer opened and without any braces: for looking at words and letters, never for comparing formulas."""
    return " ".join(opened(surfaced).replace("{", " ").replace("}", " ").split())


def is_words(surfaced: str) -> bool:
    """Whether an answer is made of words alone: letters, no digit, no sign of arithmetic, and not a lone variable."""
    bare = without_wrapping(surfaced)
    if any(sign in bare for sign in "0123456789+=<>^*/\\|_"):
        return False
    letters = _PUNCTUATION.sub("", bare)
    words = _PUNCTUATION.sub(" ", bare).split()
    if len(letters) < 2 or not letters.isalpha() or any(word in FUNCTIONS or word in GREEK for word in words):
        return False
    if any(len(cut_run(word, False)) > 1 for word in words):
        return False
    upright = r"\text" in surfaced or r"\mbox" in surfaced
    return any(len(word) > 3 or upright or word.lower() in WORDS_NOT_PRODUCTS for word in words)


def number_in_words(words: str) -> int | None:
    """`five`, `twenty one`; up to a hundred, as answers spell them out."""
    parts = words.split()
    if len(parts) == 1 and parts[0] in _ONES:
        return _ONES.index(parts[0])
    if parts and parts[0] in _TENS:
        if len(parts) == 1:
            return _TENS[parts[0]]
        if len(parts) == 2 and parts[1] in _ONES[1:10]:
            return _TENS[parts[0]] + _ONES.index(parts[1])
    return 100 if words in ("hundred", "one hundred") else None


def is_not_a_number(surfaced: str) -> bool:
    """Not-a-number in any spelling: never an answer."""
    return plain_text(surfaced) in _NEVER or without_wrapping(surfaced).strip().lower() in _NEVER


def choice_letter(surfaced: str) -> str | None:
    r"""The letter of a multiple-choice answer: `D`, `(D)`, `\text{(D)}`, `D.`, `D: a lower rate`, `(D) 5`, `Option D`.

    None when there is no letter, or when the text goes on to name another choice.
    """
    bare = without_wrapping(surfaced)
    if (alone := _CHOICE_ALONE.match(bare)) is not None:
        return alone.group(1).upper()
    if (named := _CHOICE_NAMED.match(bare)) is not None:
        return named.group(1).upper()
    led = _CHOICE_LED.match(bare)
    if led is None:
        return None
    letter = led.group(1) or led.group(2)
    others = {found for match in _OTHER_CHOICE.finditer(led.group(3)) for found in match.groups() if found}
    return letter if others <= {letter} else None


def has_choice_form(surfaced: str) -> bool:
    """Whether a reference answer is a choice: a lone letter from A to J, or one followed by the text of the choice."""
    bare = without_wrapping(surfaced)
    alone = _CHOICE_ALONE.match(bare)
    if alone is not None:
        return alone.group(1) in "ABCDEFGHIJ"
    led = _CHOICE_LED.match(bare)
    return led is not None and (led.group(1) is not None or any(len(word) > 2 and word.isalpha() for word in led.group(3).split()))


def choice_letters(surfaced: str) -> frozenset[str] | None:
    """The letters of an answer that names several choices: `A, C`, `A and C`, `ACD`."""
    bare = without_wrapping(surfaced)
    return frozenset(re.findall(r"[A-J]", bare)) if _CHOICES.match(bare) else None
