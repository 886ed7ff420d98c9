r"""Which part of a response is the answer: the last closed `\boxed{}`; of a short response without any box, all of it.

The second is for the tool `finish`, whose argument is the answer alone. A long response without a box has none: picking a word of it would
reward whoever names everything.
"""

from __future__ import annotations

from workers.graders.boxed import has_box, last_boxed

SHORT_CHARS = 200


def final_answer(response: str) -> str | None:
    """The answer; None when there is none."""
    boxed = last_boxed(response)
    if boxed is not None:
        return boxed.strip()
    whole = response.strip()
    if not whole or has_box(response) or "\n" in whole or len(whole) > SHORT_CHARS:
        return None
    return whole
