r"""A choice among options: the letter, or the text of the option.

`C`, `(C)`, `C.`, `\text{C}`, `Option C`, `C) 12 m/s`, and `12 m/s` are all the third option when it says `12 m/s`. A letter goes before a
text: where options are letters themselves (blood groups), a lone letter is that of the option. A letter whose text is another option's, or
an answer that names two, is no choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from workers.graders.math_answer import choice_letter
from workers.graders.short_text import normal
from workers.graders.verdict import Verdict

LETTERS = "ABCDEFGHIJ"
MAX_CHARS = 2_000
_LED = re.compile(r"^\W*(?:(?:option|choice|answer)\s*)?\(?[A-Ja-j]\)?\s*[.:)\-–]\s*(?=\S)", re.IGNORECASE)


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """Which of the options an answer names; None when it is none of them, or not clear.

    Args:
        options: in the order they were shown; empty = only the letter is known.
    """
    if len(answer) > MAX_CHARS:
        return None
    letter = choice_letter(answer)
    texts = [normal(option) for option in options]
    if letter is not None and letter in LETTERS[: len(options) or len(LETTERS)]:
        place = LETTERS.index(letter)
        behind = normal(_LED.sub("", answer, count=1)) if _LED.match(answer) else ""
        is_its_text = bool(texts) and behind == texts[place]
        is_another_letter = len(behind) == 1 and behind.upper() in LETTERS and behind.upper() != letter
        return None if not is_its_text and (behind in texts or is_another_letter) else place
    said = normal(answer)
    places = [place for place, text in enumerate(texts) if text and text == said]
    return places[0] if len(places) == 1 else None


def compare_choices(right: int, answer: str, options: Sequence[str]) -> Verdict:
    """The verdict on an answer; `right` is the place of the right option."""
    place = chosen(answer, options)
    if place is None:
        return Verdict("unreadable", "no_choice")
    return Verdict("right", "choice") if place == right else Verdict("wrong", "other_choice")
