"""What somebody may have meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean 'math'?` where a known name is close, else all that there are."""
    names = list(known)
    close = close_to(name, names)
    if close:
        return f"did you mean {close!r}?"
    return f"known are {', '.join(names)}" if names else "there are none"


def close_to(name: str, known: Iterable[str]) -> str:
    """The known name that is closest; empty when none is close."""
    import difflib

    # how a name is capitalised, or whether it has a line or a dash, is the most frequent slip, and counts for much in a short one
    plain = {_plain(each): each for each in sorted(known, reverse=True)}
    close = difflib.get_close_matches(_plain(name), plain, n=1)
    return plain[close[0]] if close else ""


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
