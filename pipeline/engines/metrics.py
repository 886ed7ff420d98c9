"""A page of `/metrics`, as far as a look at a server needs it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

LARGEST = 1e12
"""Counts, shares and times since 1970 are below; what is above would be infinite when it is summed up."""
_VALUE = re.compile(r"(?:\{.*\})? (\S+)")


def samples_of(page: object, names: Iterable[str]) -> dict[str, list[float]]:
    """Values of the named metrics, one for each set of labels; a name that is not there, or has no number from 0 to `LARGEST`, has none.

    Such a page has thousands of lines and is read each second: only lines that begin like one of `names` are looked at closely.
    """
    found: dict[str, list[float]] = {name: [] for name in names}
    if not isinstance(page, str):
        return found
    wanted = tuple(found)
    for line in page.splitlines():
        if not line.startswith(wanted):
            continue
        for name, values in found.items():
            if line.startswith(name) and (match := _VALUE.fullmatch(line, len(name))) and 0 <= (value := _number(match[1])) <= LARGEST:
                values.append(value)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
