"""Units behind a number: which quantity they measure and how they convert.

A known unit is compared with another by value, so 1 m is 100 cm and never 100 m; a noun that is no unit ("apples", "ways") is a label,
which says nothing against the number before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LABEL_WORDS = 5
"""A longer tail behind a number is a sentence and not a label."""

_LENGTHS = {
    "m": 1, "meter": 1, "metre": 1, "km": 1000, "kilometer": 1000, "kilometre": 1000, "cm": "1/100", "centimeter": "1/100",
    "centimetre": "1/100", "mm": "1/1000", "millimeter": "1/1000", "millimetre": "1/1000", "dm": "1/10", "micrometer": "1/1000000",
    "nm": "1/1000000000", "in": "127/5000", "inch": "127/5000", "ft": "381/1250", "foot": "381/1250", "yd": "1143/1250",
    "yard": "1143/1250", "mi": "1609344/1000", "mile": "1609344/1000",
}  # fmt: skip
_TIMES = {
    "s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hr": 3600, "hour": 3600, "day": 86400, "week": 604800,
    "ms": "1/1000", "millisecond": "1/1000", "month": ("month", 1), "year": ("month", 12), "yr": ("month", 12), "decade": ("month", 120),
}  # fmt: skip
_MASSES = {
    "g": 1, "gram": 1, "kg": 1000, "kilogram": 1000, "mg": "1/1000", "milligram": "1/1000", "t": 1_000_000, "tonne": 1_000_000,
    "lb": "45359237/100000", "pound": "45359237/100000", "oz": "45359237/1600000", "ounce": "45359237/1600000",
}  # fmt: skip
_MONEY = {
    "dollar": ("usd", 1), "usd": ("usd", 1), "buck": ("usd", 1), "cent": ("usd", "1/100"), "penny": ("usd", "1/100"),
    "¢": ("usd", "1/100"), "euro": ("eur", 1), "eur": ("eur", 1), "pounds sterling": ("gbp", 1), "yen": ("yen", 1), "rupee": ("inr", 1),
    "yuan": ("cny", 1),
}  # fmt: skip
_OTHERS = {
    "degree": ("degree", 1), "deg": ("degree", 1), "percent": ("percent", 1), "percentage": ("percent", 1), "radian": ("radian", 1),
    "rad": ("radian", 1), "n": ("newton", 1), "newton": ("newton", 1), "j": ("joule", 1), "joule": ("joule", 1), "kj": ("joule", 1000),
    "w": ("watt", 1), "watt": ("watt", 1), "kw": ("watt", 1000), "v": ("volt", 1), "volt": ("volt", 1), "ampere": ("amp", 1),
    "amp": ("amp", 1), "ohm": ("ohm", 1), "hz": ("hertz", 1), "hertz": ("hertz", 1), "pa": ("pascal", 1), "pascal": ("pascal", 1),
    "kpa": ("pascal", 1000), "mol": ("mole", 1), "mole": ("mole", 1), "k": ("kelvin", 1), "kelvin": ("kelvin", 1),
    "celsius": ("celsius", 1), "fahrenheit": ("fahrenheit", 1), "bit": ("bit", 1), "byte": ("bit", 8),
}  # fmt: skip
_VOLUMES = {"l": "1/1000", "liter": "1/1000", "litre": "1/1000", "ml": "1/1000000", "milliliter": "1/1000000", "gallon": ("gallon", 1)}
_SPEEDS = {"mph": ("1609344/1000", 3600), "kph": (1000, 3600), "kmh": (1000, 3600)}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
_PLURALS = {
    "feet": "foot",
    "inches": "inch",
    "pennies": "penny",
    "lbs": "lb",
    "hrs": "hr",
    "mins": "min",
    "secs": "sec",
    "yds": "yd",
    "yrs": "yr",
}
_CASED = {"M", "S", "G", "T", "H"}
"""Capitals that are no spelling of the small unit letter."""

_PIECE = re.compile(r"([A-Za-z¢]+)\.?|\^\s*\{?(-?\d+)\}?|([/*·])|(\s+)|(.)")
_DOUBTFUL = frozenset((
    "not", "or", "maybe", "perhaps", "probably", "wrong", "incorrect", "if", "unless", "except", "plus", "minus", "more", "less",
    "fewer", "times", "than", "but", "possibly", "either", "neither", "nor", "nan", "no", "at", "least", "most", "between", "from",
    "to", "until", "which", "when", "where", "however", "instead", "actually", "also",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """What stood behind a number."""

    dimensions: tuple[tuple[str, int], ...] | None
    """Quantity and power, in order; None for a label that is no unit."""
    factor: Fraction = Fraction(1)
    """One of this unit in the base unit of its quantity."""
    scale: Fraction = Fraction(1)
    """What a counting word multiplies with: `3 million`."""


def _table() -> dict[str, tuple[tuple[tuple[str, int], ...], Fraction]]:
    table: dict[str, tuple[tuple[tuple[str, int], ...], Fraction]] = {}
    for quantity, power, units in (
        ("length", 1, _LENGTHS),
        ("time", 1, _TIMES),
        ("mass", 1, _MASSES),
        ("length", 3, _VOLUMES),
        ("", 1, _MONEY | _OTHERS),
    ):
        for name, entry in units.items():
            own, factor = entry if isinstance(entry, tuple) else (quantity, entry)
            table[name] = (((str(own), power if own == quantity else 1),), Fraction(str(factor)))
    for name, (above, below) in _SPEEDS.items():
        table[name] = ((("length", 1), ("time", -1)), Fraction(str(above)) / below)
    return table


_UNITS = _table()


def read_unit(phrase: str) -> Unit | None:
    """The unit or label that `phrase` is, or None when it is neither: a sentence, a doubt, another number.

    `phrase` is plain text with `^`, `/` and `*` as in `m/s^2`, `square inches`, `meters per second`.
    """
    words: list[str] = []
    dimensions: dict[str, int] = {}
    factor, scale = Fraction(1), Fraction(1)
    sign, pending, last = 1, 1, None
    known = True
    for match in _PIECE.finditer(phrase.strip()):
        word, exponent, operator, _, other = match.groups()
        if other is not None and other not in "().,":
            return None
        if exponent is not None:
            if last is None or abs(int(exponent)) > 9:
                return None
            name, sign_then, power_then = last
            factor *= _add(dimensions, name, sign_then * power_then * (int(exponent) - 1))
            last = None
        elif operator is not None:
            sign = -1 if operator == "/" else sign
        elif word is not None:
            words.append(word.lower())
            lowered = word.lower()
            if lowered == "per":
                sign = -1
            elif lowered in _SCALES and not dimensions:
                scale *= _SCALES[lowered]
            elif lowered in ("squared", "cubed") and last is not None:
                name, sign_then, power_then = last
                factor *= _add(dimensions, name, sign_then * power_then * (_POWERS[lowered] - 1))
                last = None
            elif lowered in _POWERS:
                pending = _POWERS[lowered]
            elif (singular := _singular(word)) is not None:
                factor *= _add(dimensions, singular, sign * pending)
                last, pending = (singular, sign, pending), 1
            elif lowered != "of":
                known = False
    if not words or len(words) > MAX_LABEL_WORDS or not _DOUBTFUL.isdisjoint(words):
        return None if words or phrase.strip() else Unit((), Fraction(1))
    if not known:
        return Unit(None, scale=scale)
    return Unit(tuple(sorted((quantity, power) for quantity, power in dimensions.items() if power)), factor, scale)


def is_known_unit(word: str) -> bool:
    """Whether a word alone is a unit's name or symbol."""
    return _singular(word) is not None


def _singular(word: str) -> str | None:
    if word in _CASED:
        return None
    lowered = _PLURALS.get(word.lower(), word.lower())
    if lowered in _UNITS:
        return lowered
    trimmed = lowered.removesuffix("s")
    return trimmed if len(trimmed) > 2 and trimmed in _UNITS else None


def _add(dimensions: dict[str, int], name: str, power: int) -> Fraction:
    """Counts a unit into `dimensions` and returns its factor."""
    own, factor = _UNITS[name]
    for quantity, each in own:
        dimensions[quantity] = dimensions.get(quantity, 0) + each * power
    return factor**power
