r"""A measured value against another: numbers with units, to a stated tolerance.

Reading: `9.8`, `1,200`, `6.02e23`, `6.02 \times 10^{23}\,\mathrm{mol^{-1}}`, `\frac{3}{4}`, `v = 3.0\cdot 10^8 m/s`, `25^\circ C`, `12\%`,
`9.8 \pm 0.1`. Nothing is computed: `2 \cdot 9.8` is no answer, so that a formula filled in is not taken for its result.

Units. An answer in another unit of the same kind is converted (0.5 km is 500 m; temperatures by their scales). An answer without a unit is
taken to be in the reference's, since the question names it; `Leeway.unit_needed` demands it. A known unit of another kind is wrong, an
unknown word behind a number is too where the reference has a unit, and a label (`12 electrons`) where it has none.

Tolerance policy, the first that applies:
    - `absolute`, in the reference's unit, and `relative`, of the reference: the larger of the two
    - `digits`: what agrees with the reference to so many significant digits, half a unit of the last
    - a whole number without a unit is a count: exactly that number
    - else 1 %: room for the constants and the rounding of another honest way
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from workers.graders.math_answer.units import read_unit as read_label
from workers.graders.physical_units import ONE, Unit, read_units
from workers.graders.verdict import Verdict

DEFAULT_RELATIVE = 0.01
MAX_CHARS = 200
"""A longer answer is no value with its unit."""
_MAX_EXPONENT = 400
_MAX_DIGITS = 60
_MAX_NESTING = 6

_UPRIGHT = re.compile(r"\\(?:text|mathrm|mathsf|mathbf|mathit|textrm|operatorname|rm|unit|si|mbox)\s*\{([^{}]*)\}")
_SIUNITX = re.compile(r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_RAISED_GROUP = re.compile(r"\^\s*\{([^{}]*)\}")
_BRACES = re.compile(r"\{([^{}]*)\}")
_COMMANDS = (
    (re.compile(r"\\(?:,|;|:|!| |(?:q?quad|left|right|displaystyle)(?![A-Za-z]))|~|\$"), " "),
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])|×|⋅|·|∙"), "*"),
    (re.compile(r"\\(?:approx|simeq|sim|thickapprox)(?![A-Za-z])|≈|∼"), "="),
    (re.compile(r"\\pm(?![A-Za-z])|±|\+/-|\+-"), "±"),
    (re.compile(r"\^\s*\{?\s*(?:\\circ|\\degree|∘)\s*\}?|\\(?:text)?degree(?![A-Za-z])|º|∘|℃|℉"), "°"),
    (re.compile(r"\\(?:mu|upmu|textmu)(?![A-Za-z])|μ"), "µ"),
    (re.compile(r"\\(?:Omega|ohm)(?![A-Za-z])|Ω"), "Ω"),
    (re.compile(r"\\(?:AA|angstrom)(?![A-Za-z])|\\mathring\s*\{?A\}?|Å"), "Å"),
    (re.compile(r"\\(?:%|percent(?![A-Za-z]))"), "%"),
    (re.compile("[−–—]"), "-"),
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_NUMBER = re.compile(
    r"(?P<digits>[+-]?\s*(?:\d{1,3}(?:,\d{3})+(?![\d])|\d{1,3}(?: \d{3})+(?![\d])|\d+)?(?:\.\d+|\.(?!\d))?)"
    r"(?:/(?P<below>\d{1,60})(?![\d.]))?"
    r"(?:[eE](?P<e>[+-]?\d{1,4})(?![\dA-Za-z])|(?P<product>\s*[*xX]\s*10)\s*(?:\^\s*\(?\s*(?P<ten>[+-]?\s*\d{1,4})\s*\)?)?(?![\d.]))?"
)
_POWER_OF_TEN = re.compile(r"(?P<sign>[+-]?)\s*10\s*\^\s*\(?\s*(?P<ten>[+-]?\s*\d{1,4})\s*\)?(?![\d.])")
_LEAD = re.compile(r"^(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is)?|approximately|approx\.?|about|roughly|is|ca\.)\s*:?\s*", re.IGNORECASE)
_UNCERTAINTY = re.compile(r"^\s*±\s*\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leeway:
    """How far an answer may be from the reference; nothing said = the policy above."""

    relative: float | None = None
    absolute: float | None = None
    """In the reference's unit."""
    digits: int | None = None
    """Significant digits that must agree."""
    unit_needed: bool = False
    """Whether an answer without a unit is wrong."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number with what it may be measured in."""

    number: Fraction
    units: tuple[Unit, ...]
    """Its readings; empty = something behind the number that is no unit."""
    label: str = ""
    """What stood behind the number."""
    is_whole: bool = False
    """Written as a whole number, without point or power of ten."""


def compare_quantities(reference: str, unit: str, answer: str, leeway: Leeway) -> Verdict:
    """The verdict on an answer.

    Args:
        reference: the right value, with its unit when `unit` is empty.
        unit: of the reference; empty = none, or behind the value.

    Raises:
        ValueError: the reference is no value, or its unit is none.
    """
    expected = reference_of(reference, unit)
    found = read_value(answer)
    if found is None:
        return Verdict("unreadable", "no_value")
    has_unit = bool(found.label)
    if has_unit and not found.units:
        if expected.label or read_label(found.label) is None:
            return Verdict("wrong", "unknown_unit")
        has_unit = False
    if not has_unit and expected.label and leeway.unit_needed:
        return Verdict("wrong", "no_unit")
    home = expected.units[0]
    as_it_stands = _decide(expected, found.number, home, leeway)
    if not has_unit or (not expected.label and as_it_stands.is_right):
        return as_it_stands  # a reference without a unit does not say what it is measured in: 45 degrees are 45, and 50 % are 0.5
    readings = [(mine, theirs) for mine in expected.units for theirs in found.units if mine.dimensions == theirs.dimensions]
    if not readings:
        return Verdict("wrong", "other_unit" if expected.label else "other_value")
    verdicts = [_decide(expected, (theirs.in_si(found.number) - mine.offset) / mine.factor, mine, leeway) for mine, theirs in readings]
    return next((verdict for verdict in verdicts if verdict.is_right), verdicts[0])


def reference_of(reference: str, unit: str = "") -> Value:
    """The reference as a value.

    Raises:
        ValueError: it is none, or its unit is none that is known.
    """
    found = read_value(f"{reference} {unit}" if unit else reference)
    if found is None or not found.units:
        what = f"{reference} {unit}".strip()
        raise ValueError(f"{what[:80]!r} is no number with a unit that is known")
    return found


def _decide(expected: Value, number: Fraction, unit: Unit, leeway: Leeway) -> Verdict:
    right, allowed = expected.number, Fraction(0)
    if leeway.relative is not None or leeway.absolute is not None:
        allowed = max(Fraction(leeway.relative or 0) * abs(right), Fraction(leeway.absolute or 0))
    elif leeway.digits is not None:
        allowed = _half_a_digit(right, leeway.digits)
    elif not (expected.is_whole and unit == ONE):
        allowed = Fraction(DEFAULT_RELATIVE) * abs(right)
    return Verdict("right", "within_tolerance") if abs(number - right) <= allowed else Verdict("wrong", "other_value")


def _half_a_digit(value: Fraction, digits: int) -> Fraction:
    """Half of the last of so many significant digits of `value`."""
    if value == 0:
        return Fraction(0)
    place, size = 0, abs(value)
    while size >= 10:
        size, place = size / 10, place + 1
    while size < 1:
        size, place = size * 10, place - 1
    return Fraction(10) ** (place - digits + 1) / 2


def read_value(text: str) -> Value | None:
    """The value that a text is; None when it is none. The last side of an equation counts."""
    if len(text) > MAX_CHARS:
        return None
    said = plain(text).rpartition("=")[2].strip()
    said = _LEAD.sub("", said).strip()
    number: Fraction | None
    if (power := _POWER_OF_TEN.match(said)) is not None:
        sign, scale, end, is_whole = (-1 if power["sign"] == "-" else 1), _ten(power["ten"]), power.end(), False
        number = None if scale is None else sign * scale
    elif (match := _NUMBER.match(said)) is not None:
        number, end = _number(match), match.end()
        is_whole = end == match.end("digits") and "." not in match["digits"]
    else:
        return None
    if number is None:
        return None
    rest = said[end:]
    if (uncertain := _UNCERTAINTY.match(rest)) is not None:
        rest = rest[uncertain.end() :]
    label = rest.strip().rstrip(".;,").strip()
    if label[:1].isdigit() or label[:1] in ("+", "-", "^", "!"):
        return None  # a calculation, a range, a second number
    if label.startswith("*"):
        label = label[1:].strip()
    return Value(number, read_units(label), label, is_whole)


def _number(match: re.Match[str]) -> Fraction | None:
    """What a match of `_NUMBER` is worth."""
    digits = re.sub(r"[\s,]", "", match["digits"])
    scale = Fraction(10) if match["product"] and not match["ten"] else _ten(match["e"] or match["ten"])
    below = int(match["below"] or 1)
    if not any(sign.isdigit() for sign in digits) or len(digits) > _MAX_DIGITS or below == 0 or scale is None:
        return None
    return Fraction(digits.rstrip(".")) / below * scale


def plain(text: str) -> str:
    """LaTeX of a value and its unit as plain text with `^`, `/`, `*` and brackets."""
    said = _SIUNITX.sub(r"\1 \2", text)
    said = said.replace("℃", "°C").replace("℉", "°F").replace("\u00a0", " ").replace("\u202f", " ").replace("\u2009", " ")
    for pattern, sign in _COMMANDS:
        said = pattern.sub(sign, said)
    said = _RAISED.sub(lambda raised: f"^({raised[0].translate(_SUPERSCRIPTS)})", said)
    for _ in range(_MAX_NESTING):
        before = said
        said = _RAISED_GROUP.sub(r"^(\1)", said)  # innermost first: it may stand in any of the others
        said = _UPRIGHT.sub(r" \1", said)
        said = _FRACTION.sub(_divided, said)
        if said == before:
            said = _BRACES.sub(r" \1", said)
    return " ".join(said.replace("^ (", "^(").split())


def _divided(fraction: re.Match[str]) -> str:
    above, below = (part.strip() for part in fraction.groups())
    return f" {above}/{below}" if below.isalnum() else f" {above}/({below})"


def _ten(exponent: str | None) -> Fraction | None:
    """The power of ten that was written; None when it is beyond all that is measured."""
    power = int((exponent or "0").replace(" ", ""))
    return Fraction(10) ** power if abs(power) <= _MAX_EXPONENT else None
