r"""Which part of a response is the answer where `<answer>` tags are asked for.

The last `<answer>...</answer>`; without any tag the last closed `\boxed{}`; without a box the whole response. A tag, or a box, that is
opened last and never closed leaves no answer: a response that was cut off must not score for what it gave up.
"""

from __future__ import annotations

from workers.graders.boxed import has_box, last_boxed

OPENING, CLOSING = "<answer>", "</answer>"


def tagged_answer(response: str) -> str | None:
    """The answer, without spaces around it; None when there is none."""
    opened = response.rfind(OPENING)
    if opened >= 0:
        start = opened + len(OPENING)
        closed = response.find(CLOSING, start)
        found: str | None = None if closed < 0 else response[start:closed]
    elif has_box(response):
        found = last_boxed(response)
    else:
        found = response
    return None if found is None or not found.strip() else found.strip()


def tagged(answer: str) -> str:
    """An answer as it is asked for."""
    return f"{OPENING}{answer}{CLOSING}"
