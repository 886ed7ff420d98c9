r"""Units of natural science: symbols with their prefixes, names, products and powers of them.

Symbols are read as they are written (`mJ` is no `MJ`, `T` is tesla and `t` a tonne), names in any case. This is stricter than the units of
`math_answer`, which forgive the spelling of everyday units, and knows more of them.

A phrase such as `J/mol K` is written for `J/(mol K)` and for `(J/mol) K`: both readings are given, and the one that fits counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

MAX_PHRASE_CHARS = 80
_MAX_POWER = 12

_PREFIXES = {
    "Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1, "d": -1, "c": -2, "m": -3, "µ": -6, "u": -6,
    "n": -9, "p": -12, "f": -15, "a": -18, "z": -21, "y": -24,
}  # fmt: skip
_PREFIX_NAMES = {
    "tera": 12, "giga": 9, "mega": 6, "kilo": 3, "hecto": 2, "deci": -1, "centi": -2, "milli": -3, "micro": -6, "nano": -9, "pico": -12,
    "femto": -15,
}  # fmt: skip
_DIMENSIONS = {
    "m": "m", "kg": "kg", "s": "s", "A": "A", "K": "K", "mol": "mol", "cd": "cd", "N": "kg m s^-2", "Pa": "kg m^-1 s^-2",
    "J": "kg m^2 s^-2", "W": "kg m^2 s^-3", "C": "A s", "V": "kg m^2 s^-3 A^-1", "F": "kg^-1 m^-2 s^4 A^2", "ohm": "kg m^2 s^-3 A^-2",
    "S": "kg^-1 m^-2 s^3 A^2", "Wb": "kg m^2 s^-2 A^-1", "T": "kg s^-2 A^-1", "H": "kg m^2 s^-2 A^-2", "lx": "cd m^-2", "Sv": "m^2 s^-2",
    "P": "kg m^-1 s^-1", "M": "mol m^-3", "volume": "m^3", "area": "m^2", "per s": "s^-1", "kat": "mol s^-1", "moment": "A s m", "": "",
    "speed": "m s^-1",
}  # fmt: skip
"""What quantities are made of."""

_EV = "1.602176634e-19"
_DALTON = "1.66053906660e-27"
_DEGREE = "0.017453292519943295769"
_PREFIXED: Mapping[str, tuple[str, str]] = {
    "m": ("m", "1"), "g": ("kg", "1/1000"), "s": ("s", "1"), "A": ("A", "1"), "K": ("K", "1"), "mol": ("mol", "1"), "cd": ("cd", "1"),
    "Hz": ("per s", "1"), "N": ("N", "1"), "Pa": ("Pa", "1"), "J": ("J", "1"), "W": ("W", "1"), "C": ("C", "1"), "V": ("V", "1"),
    "F": ("F", "1"), "Ω": ("ohm", "1"), "S": ("S", "1"), "Wb": ("Wb", "1"), "T": ("T", "1"), "H": ("H", "1"), "lx": ("lx", "1"),
    "Bq": ("per s", "1"), "Gy": ("Sv", "1"), "Sv": ("Sv", "1"), "L": ("volume", "1/1000"), "l": ("volume", "1/1000"), "eV": ("J", _EV),
    "cal": ("J", "4184/1000"), "bar": ("Pa", "100000"), "M": ("M", "1000"), "Da": ("kg", _DALTON),
    "kat": ("kat", "1"), "Ci": ("per s", "37000000000"), "rad": ("", "1"), "t": ("kg", "1000"), "pc": ("m", "30856775814913673"),
    "VA": ("W", "1"), "Wh": ("J", "3600"), "Ah": ("C", "3600"), "Torr": ("Pa", "101325/760"), "P": ("P", "1/10"), "G": ("T", "1/10000"),
}  # fmt: skip
"""Symbols that take a prefix: what they measure, and one of them in units of the SI."""
_ALONE: Mapping[str, tuple[str, str]] = {
    "min": ("s", "60"), "h": ("s", "3600"), "hr": ("s", "3600"), "d": ("s", "86400"), "yr": ("s", "31557600"), "sec": ("s", "1"),
    "in": ("m", "254/10000"), "ft": ("m", "3048/10000"), "yd": ("m", "9144/10000"), "mi": ("m", "1609344/1000"), "lb": ("kg", "0.45359237"),
    "atm": ("Pa", "101325"), "mmHg": ("Pa", "101325/760"), "torr": ("Pa", "101325/760"), "psi": ("Pa", "6894757/1000"), "Å": ("m", "1e-10"),
    "u": ("kg", _DALTON), "amu": ("kg", _DALTON),
    "ly": ("m", "9460730472580800"), "AU": ("m", "149597870700"), "au": ("m", "149597870700"),
    "dyn": ("N", "1/100000"), "erg": ("J", "1/10000000"),
    "D": ("moment", "3.33564e-30"), "hp": ("W", "7457/10"), "°": ("", _DEGREE), "deg": ("", _DEGREE),
    "%": ("", "1/100"), "ppm": ("", "1/1000000"), "ppb": ("", "1/1000000000"),
    "ha": ("area", "10000"), "rpm": ("per s", "1/60"), "kph": ("speed", "1000/3600"), "mph": ("speed", "1609344/3600000"),
    "cc": ("volume", "1/1000000"),
    "rev": ("", "1"), "sr": ("", "1"), "°C": ("K", "1"), "°F": ("K", "5/9"),
}  # fmt: skip
"""Symbols that take none."""
_NAMES = {
    "meter": "m", "metre": "m", "gram": "g", "gramme": "g", "second": "s", "ampere": "A", "amp": "A", "kelvin": "K", "mole": "mol",
    "candela": "cd", "hertz": "Hz", "newton": "N", "pascal": "Pa", "joule": "J", "watt": "W", "coulomb": "C", "volt": "V", "farad": "F",
    "ohm": "Ω", "siemens": "S", "weber": "Wb", "tesla": "T", "henry": "H", "becquerel": "Bq", "gray": "Gy", "sievert": "Sv", "liter": "L",
    "litre": "L", "electronvolt": "eV", "calorie": "cal", "molar": "M", "dalton": "Da", "radian": "rad", "tonne": "t", "parsec": "pc",
    "minute": "min", "hour": "h", "day": "d", "year": "yr", "inch": "in", "inches": "in", "foot": "ft", "feet": "ft", "yard": "yd",
    "mile": "mi", "pound": "lb", "atmosphere": "atm", "angstrom": "Å", "degree": "°", "percent": "%", "celsius": "°C", "fahrenheit": "°F",
    "lux": "lx", "debye": "D", "gauss": "G", "poise": "P", "revolution": "rev", "steradian": "sr",
}  # fmt: skip
_OFFSETS = {"°C": Fraction("273.15"), "°F": Fraction("459.67") * Fraction(5, 9), "K": Fraction(0)}
"""Kelvin at the zero of a scale of temperature."""

_PIECE = re.compile(
    r"\s*(?:(°\s*[CF](?![A-Za-z])|[A-Za-zµΩÅ°%]+)\.?|\^\s*(?:\(\s*([+-]?\d{1,2})\s*\)|([+-]?\d{1,2}))|([/*·])|([()])|(\d)(?![\d.]))"
)
_GLUED_POWER = re.compile(r"^[A-Za-zµΩ]{1,4}$")


@dataclass(frozen=True, slots=True)
class Unit:
    """What a value is measured in."""

    dimensions: tuple[tuple[str, int], ...]
    """Base unit and power, in order; empty = a plain number."""
    factor: Fraction
    """One of it in units of the SI."""
    offset: Fraction = Fraction(0)
    """Of a scale of temperature that stands alone: kelvin at its zero."""
    is_scale: bool = field(default=False, compare=False)
    """Whether it is a temperature's scale alone."""

    def in_si(self, value: Fraction) -> Fraction:
        """The value in units of the SI; of a temperature in kelvin."""
        return value * self.factor + self.offset


ONE = Unit((), Fraction(1))
"""The unit of a plain number."""


@lru_cache(maxsize=4096)
def read_units(phrase: str) -> tuple[Unit, ...]:
    """What a phrase may mean: none when it is no unit, two where it is written ambiguously.

    Args:
        phrase: plain text with `^`, `/`, `*` and brackets, as `quantity.plain` makes it of LaTeX.
    """
    phrase = phrase.strip()
    if not phrase:
        return (ONE,)
    if len(phrase) > MAX_PHRASE_CHARS:
        return ()
    found: list[Unit] = []
    for holds in (False, True):
        unit = _read(phrase, slash_holds=holds)
        if unit is not None and unit not in found:
            found.append(unit)
    return tuple(found)


def _read(phrase: str, *, slash_holds: bool) -> Unit | None:
    """One reading: a slash divides by all that follows (`slash_holds`), or by the next factor alone."""
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    symbols = 0
    alone = ""
    sign, groups = 1, [1]
    pending = 1  # what `square` makes of the next unit
    last: tuple[str, int] | None = None
    place = 0
    while place < len(phrase):
        piece = _PIECE.match(phrase, place)
        if piece is None:
            return None if phrase[place:].strip() else _whole(dimensions, factor, symbols, alone)
        place = piece.end()
        word, bracketed, power, operator, bracket, digit = piece.groups()
        if word is not None:
            word = word.replace(" ", "")
            lowered = word.lower()
            if lowered == "per":
                sign = -1
            elif lowered in ("square", "sq", "cubic"):
                pending = 3 if lowered == "cubic" else 2
            elif lowered in ("squared", "cubed"):
                if last is None:
                    return None
                factor *= _count(dimensions, last, 2 if lowered == "cubed" else 1)
                last = None
            else:
                symbol = _symbol(word)
                if symbol is None:
                    return None
                last = (symbol, groups[-1] * sign)
                factor *= _count(dimensions, last, pending)
                symbols, alone, pending = symbols + 1, symbol, 1
                if not slash_holds:
                    sign = 1
        elif bracketed is not None or power is not None or digit is not None:
            if last is None or (digit is not None and not _GLUED_POWER.match(last[0])):
                return None
            exponent = int(bracketed or power or digit)
            if abs(exponent) > _MAX_POWER:
                return None
            factor *= _count(dimensions, last, exponent - 1)
            alone = alone if exponent == 1 else ""
            last = None
        elif operator is not None:
            sign = -1 if operator == "/" else sign if slash_holds else 1
        elif bracket == "(":
            groups.append(groups[-1] * sign)
            sign = 1
        elif len(groups) > 1:
            groups.pop()
            sign = 1
        else:
            return None
    return _whole(dimensions, factor, symbols, alone) if len(groups) == 1 else None


def _whole(dimensions: Mapping[str, int], factor: Fraction, symbols: int, alone: str) -> Unit | None:
    if not symbols:
        return None
    kept = tuple(sorted((base, power) for base, power in dimensions.items() if power))
    is_scale = symbols == 1 and alone in _OFFSETS and kept == (("K", 1),)
    return Unit(kept, factor, _OFFSETS[alone] if is_scale else Fraction(0), is_scale)


def _count(dimensions: dict[str, int], unit: tuple[str, int], times: int) -> Fraction:
    """Counts a unit into `dimensions` so many times, and returns its factor."""
    symbol, sign = unit
    made_of, factor = _symbols()[symbol]
    for base, power in made_of:
        dimensions[base] = dimensions.get(base, 0) + power * sign * times
    return Fraction(factor ** (sign * times))


def _symbol(word: str) -> str | None:
    """The symbol that a word is, by itself or as a name."""
    word = word.replace("ohms", "ohm").replace("μ", "µ")
    symbols = _symbols()
    if word in symbols:
        return word
    lowered = word.lower()
    for name in (lowered, lowered.removesuffix("s")):
        if name in _NAMES:
            return _NAMES[name]
        for prefix, power in _PREFIX_NAMES.items():
            symbol = _NAMES.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if symbol in _PREFIXED:
                return next(short for short, its in _PREFIXES.items() if its == power) + str(symbol)
    return None


@lru_cache(maxsize=1)
def _symbols() -> Mapping[str, tuple[tuple[tuple[str, int], ...], Fraction]]:
    """Every symbol, prefixed ones too; what stands without a prefix comes first."""
    table: dict[str, tuple[tuple[tuple[str, int], ...], Fraction]] = {}
    for symbol, (quantity, factor) in (*_ALONE.items(), *_PREFIXED.items()):
        table[symbol] = (tuple(_powers(_DIMENSIONS[quantity])), Fraction(factor))
    for symbol in _PREFIXED:
        for prefix, power in _PREFIXES.items():
            made_of, one = table[symbol]
            table.setdefault(prefix + symbol, (made_of, one * Fraction(10) ** power))
    return table


def _powers(text: str) -> Iterator[tuple[str, int]]:
    for part in text.split():
        base, _, power = part.partition("^")
        yield base, int(power or 1)
