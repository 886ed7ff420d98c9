"""Values with units: what is read, what is the same, and how far off is still right."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.graders.physical_units import ONE, read_units
from workers.graders.quantity import Leeway, compare_quantities, read_value

POLICY = Leeway()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9.8", "9.8"),
        ("-3", "-3"),
        ("−3", "-3"),
        ("1,200.5", "1200.5"),
        ("1 200", "1200"),
        (".5", "0.5"),
        ("6.02e23", "6.02e23"),
        (r"6.02 \times 10^{23}", "6.02e23"),
        (r"$6.02\cdot10^{-3}$", "6.02e-3"),
        ("3 x 10^8", "3e8"),
        ("3×10⁸", "3e8"),
        (r"10^{-5}", "1e-5"),
        (r"\frac{3}{4}", "0.75"),
        ("3/4", "0.75"),
        (r"v \approx 4.2", "4.2"),
        ("F = ma = 12", "12"),
        ("approximately 7", "7"),
        (r"9.8 \pm 0.1", "9.8"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: str) -> None:
    found = read_value(text)

    assert found is not None
    assert (found.number, found.units) == (Fraction(number), (ONE,))


@pytest.mark.parametrize(
    "text",
    ["", "no idea", "x", "3/0", "1e9999", "9^9^9^9^9", "2-3", "2+3", "5!", "9" * 100, "(" * 150, r"\frac{1}{0}", "1" * 300, "NaN", "inf"],
)
def test_what_is_no_written_number_is_no_value(text: str) -> None:
    """Nothing is computed: neither a sum that was left to the grader, nor a tower of powers."""
    found = read_value(text)

    assert found is None


@pytest.mark.parametrize(
    ("reference", "unit", "answer"),
    [
        ("9.8", "m/s^2", r"9.81\,\frac{\mathrm{m}}{\mathrm{s}^2}"),
        ("9.8", "m/s^2", r"9.81\ \text{m}\,\text{s}^{-2}"),
        ("9.8", "m/s^2", "9.81 m s⁻²"),
        ("9.8 m/s^2", "", "9.8 meters per second squared"),
        ("500", "m", "0.5 km"),
        ("1000", "kg/m^3", "1 g/mL"),
        ("8.314", "J/(mol K)", r"8.31\ \mathrm{J\,mol^{-1}\,K^{-1}}"),
        ("8.314", "J/(mol K)", "8.31 J/mol K"),
        ("8.314", "J/mol·K", "8.31 J/(mol*K)"),
        ("4.19", "eV", r"6.71\times10^{-19}\,\mathrm{J}"),
        ("10", "N", "10 kg m/s^2"),
        ("1", "kWh", "3.6 MJ"),
        ("2.5", "M", r"2.5\ \mathrm{mol\,dm^{-3}}"),
        ("12", "µm", "12 micrometers"),
        ("10", "Ω", r"10\ \Omega"),
        ("25", "°C", "298.15 K"),
        ("25", "°C", r"77^\circ F"),
        ("-40", "°F", r"-40^{\circ}\mathrm{C}"),
        ("45", "°", "0.7854 rad"),
        ("45", "", r"45^\circ"),
        ("0.5", "", r"50\%"),
        ("8", "", "8 electrons"),
        ("20", "m^2", "20 square meters"),
        ("0.05", "mol", "50 mmol"),
    ],
)
def test_the_same_value_in_another_writing_or_unit_is_right(reference: str, unit: str, answer: str) -> None:
    assert compare_quantities(reference, unit, answer, POLICY).kind == "right"


@pytest.mark.parametrize(
    ("reference", "unit", "answer", "reason"),
    [
        ("500", "m", "0.5 kg", "other_unit"),
        ("3.2", "mJ", "3.2 MJ", "other_value"),
        ("3", "T", "3 t", "other_unit"),
        ("50", "%", "0.5 %", "other_value"),
        ("5", "m", "5 apples", "unknown_unit"),
        ("5", "m", "5 m or 6 m", "unknown_unit"),
        ("5", "", "5, 6", "unknown_unit"),
        ("19.6", "m", "2*9.8 m", "unknown_unit"),
        ("5", "m", "between 4 and 6 m", "no_value"),
        ("25", "°C", "25 K", "other_value"),
    ],
)
def test_what_is_wrong_says_why(reference: str, unit: str, answer: str, reason: str) -> None:
    verdict = compare_quantities(reference, unit, answer, POLICY)

    assert (verdict.is_right, verdict.reason) == (False, reason)


@pytest.mark.parametrize(
    ("reference", "unit", "leeway", "right", "wrong"),
    [
        ("200", "m", POLICY, "202 m", "203 m"),  # one per cent
        ("9.8", "", POLICY, "9.89", "9.9"),
        ("118", "", POLICY, "118", "117"),  # a count is exact
        ("118", "", Leeway(relative=0.01), "117", "116"),
        ("200", "m", Leeway(relative=0.0), "200 m", "200.0001 m"),
        ("200", "m", Leeway(absolute=5), "0.205 km", "0.2051 km"),
        ("200", "m", Leeway(absolute=1, relative=0.05), "210 m", "211 m"),  # the larger one
        ("0.012345", "", Leeway(digits=3), "0.01239", "0.0125"),
        ("0", "m", POLICY, "0 m", "0.001 m"),
        ("5", "m", Leeway(unit_needed=True), "5 m", "5"),
    ],
)
def test_the_tolerance_is_the_stated_one(reference: str, unit: str, leeway: Leeway, right: str, wrong: str) -> None:
    assert compare_quantities(reference, unit, right, leeway).is_right
    assert not compare_quantities(reference, unit, wrong, leeway).is_right


@pytest.mark.parametrize(("reference", "unit"), [("nine", "m"), ("9.8", "furlong"), ("", ""), ("2*3", "")])
def test_a_reference_that_is_no_value_is_an_error_of_the_row(reference: str, unit: str) -> None:
    with pytest.raises(ValueError, match="is no number with a unit"):
        compare_quantities(reference, unit, "5", POLICY)


@pytest.mark.parametrize("phrase", ["", "m", "kg m^2 s^-2", "J/mol/K", "Pa·s", "(m)", "cd", "min", "°C"])
def test_units_are_read(phrase: str) -> None:
    assert read_units(phrase)


@pytest.mark.parametrize("phrase", ["wombat", "m^", "m^99", "/", "((m)", "m)", "square", "m^(2", "kk", "3", "m" * 100])
def test_what_is_no_unit_is_none(phrase: str) -> None:
    assert read_units(phrase) == ()


PIECES = (
    "1",
    "0",
    ".",
    ",",
    " ",
    "e",
    "*",
    "x",
    "10",
    "^",
    "(",
    ")",
    "{",
    "}",
    "-",
    "/",
    "m",
    "k",
    "\\frac",
    "\\mathrm",
    "\\times",
    "±",
    "°",
    "C",
    "%",
)


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_has_a_verdict_and_reads_the_same_as_itself(text: str) -> None:
    found = read_value(text)

    assert compare_quantities("5", "m", text, POLICY).kind in ("right", "wrong", "unreadable")
    if found is not None and found.units and all(unit.factor for unit in found.units):
        assert compare_quantities(text, "", text, POLICY).is_right
