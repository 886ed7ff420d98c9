"""Properties that hold over whole kinds of answers; single pairs are in tests/cases."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workers.graders import Tolerance
from workers.graders.math_answer import STRICT, compare_answers

SMALL = st.integers(-1_000, 1_000)
LEAVES = st.one_of(st.integers(0, 20).map(str), st.sampled_from(["x", "y", "n", r"\pi", "e", "0.7", r"\frac{1}{3}", "10^{9}"]))
SHAPES = (
    "{}+{}",
    "{}-{}",
    "({})({})",
    "\\frac{{{}}}{{{}}}",
    "({})^{{{}}}",
    "\\sin({})",
    "\\sqrt{{{}}}",
    "\\ln({})",
    "({})!",
    "|{}|",
    "\\binom{{{}}}{{{}}}",
    "f({})",
)


def _composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(SHAPES), inner, inner).map(lambda parts: parts[0].format(*parts[1:]))


EXPRESSIONS = st.recursive(LEAVES, _composed, max_leaves=6)
PIECES = r"""
x y n 1 2 10 0.5 99 ^ ^{ } { ( ) [ ] + - * / ! = < > , \frac{ \sqrt{ \sin \pi \pm \infty \cup or \text{or} \le e i | % ^\circ \{ \} & \\
\begin{pmatrix} \end{pmatrix} 9^{9^{9}} : ; ' _ \Theta( f( 1,000 2e9 gcd( \lfloor \rfloor \in \mathbb{R} \setminus \$ ? \text{cm}
"""
JUNK = st.lists(st.sampled_from(PIECES.split()), max_size=25).map(" ".join)


def same(gold: str, answer: str, tolerance: Tolerance = STRICT) -> bool:
    return compare_answers(gold, answer, tolerance).verdict == "same"


@given(EXPRESSIONS)
def test_an_expression_is_itself_however_it_is_set(expression: str) -> None:
    assert same(expression, f"${expression}$")
    assert same(expression, rf"\left({expression}\right)")
    assert same(expression, expression.replace("+", " + ").replace("(", r"\left( ").replace(")", r" \right)"))


@given(EXPRESSIONS, EXPRESSIONS)
def test_a_comparison_ends_with_a_verdict_and_does_not_depend_on_the_side(one: str, other: str) -> None:
    there, back = compare_answers(one, other), compare_answers(other, one)

    assert {there.verdict, back.verdict} in ({"same"}, {"different"}, {"undecided"}, {"different", "undecided"})


@given(JUNK, JUNK)
def test_no_text_breaks_the_comparison(gold: str, answer: str) -> None:
    assert compare_answers(gold, answer).verdict in ("same", "different", "unreadable", "undecided")


@given(EXPRESSIONS, st.integers(1, 50))
def test_an_expression_and_more_is_another(expression: str, more: int) -> None:
    assert not same(expression, f"{expression}+{more}") or compare_answers(expression, expression + "+1-1").verdict != "same"


@given(SMALL, SMALL)
def test_whole_numbers_are_equal_exactly_when_they_are(one: int, other: int) -> None:
    assert same(str(one), str(other)) is (one == other)
    assert same(f"{one:,}", f"{one}.0")


@given(SMALL, st.integers(1, 999), SMALL)
def test_fractions_are_compared_exactly(top: int, bottom: int, shift: int) -> None:
    assert same(rf"\frac{{{top}}}{{{bottom}}}", f"{top * 7}/{bottom * 7}")
    assert same(f"{top}/{bottom}", rf"\frac{{{top + shift}}}{{{bottom}}}") is (shift == 0)


@given(st.integers(1, 10**6), st.integers(2, 7))
def test_a_rounded_decimal_is_not_the_value_it_came_from(top: int, digits: int) -> None:
    exact = f"{top}/7"
    assume(top % 7)

    rounded = f"{top / 7:.{digits}g}"
    full = f"{top / 7:.15g}"

    assert not same(exact, rounded)
    assert "e" in full or same(exact, full)


def test_a_task_may_grant_leeway_for_numbers() -> None:
    assert same(r"\frac{500}{3}", "166.67", Tolerance(absolute=0.01))
    assert not same(r"\frac{500}{3}", "166.6", Tolerance(absolute=0.01))
    assert same(r"2\pi", "6.28", Tolerance(relative=1e-3))
    assert same("(1, 2)", "(1.001, 2)", Tolerance(absolute=0.01))
    assert not same("x", "x+0.001", Tolerance(absolute=0.01))


@pytest.mark.parametrize(
    ("gold", "answer", "counts"),
    [
        ("5", "2+3", False),
        ("5", "5!-115", False),
        ("5", r"\frac{10}{2}", True),
        ("5", "2+3=5", True),
        ("5", r"\sum_{k=1}^{5} 1", False),
        ("2000", r"2\times 10^3", True),
        ("6", r"2\cdot 3", False),
        ("14.0 - 8.0i", "(10.0 - 1.0i) + (4.0 - 7.0i)", False),
        ("14.0 - 8.0i", "14-8i", True),
        ("2+3i, -2-3i", r"\pm(2+3i)", True),
        (r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"\cos 75^\circ", False),
        (r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"\frac{\sqrt{2}(\sqrt{3}-1)}{4}", True),
        (r"\frac{\pi}{4}", r"\int_0^{\pi/2}\sin^2 x\,dx", False),
        ("7.5", r"7\frac{1}{2}", True),
    ],
)
def test_a_task_may_demand_that_an_answer_is_worked_out(gold: str, answer: str, counts: bool) -> None:
    assert same(gold, answer, Tolerance(worked_out=True)) is counts


@given(st.lists(SMALL, min_size=2, max_size=6, unique=True), st.randoms())
def test_lists_have_no_order_and_points_have_one(values: list[int], random: object) -> None:
    turned = values[1:] + values[:1]

    assert same(", ".join(map(str, values)), ", ".join(map(str, turned)))
    assert same(r"\{" + ", ".join(map(str, values)) + r"\}", r"\{" + ", ".join(map(str, turned)) + r"\}")
    assert not same(f"({', '.join(map(str, values))})", f"({', '.join(map(str, turned))})")
    assert not same(", ".join(map(str, values)), ", ".join(map(str, values[1:])))


@given(SMALL, SMALL, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_an_interval_is_its_inequality_with_the_same_ends(
    low: int, width: int, left: bool, right: bool, other_left: bool, other_right: bool
) -> None:
    high = low + abs(width) + 1
    interval = f"{'[' if left else '('}{low}, {high}{']' if right else ')'}"
    signs = [r"\le" if closed else "<" for closed in (other_left, other_right)]
    inequality = f"{low} {signs[0]} x {signs[1]} {high}"

    assert same(interval, inequality) is ((left, right) == (other_left, other_right))
    assert same(inequality, interval) is ((left, right) == (other_left, other_right))


@given(st.sampled_from("ABCDE"), st.sampled_from("ABCDE"))
def test_a_choice_is_its_letter_in_every_form(gold: str, letter: str) -> None:
    for form in ("{}", "({})", r"\text{{({})}}", r"\textbf{{{}}}", "{}.", "{}: the rate falls", r"({})\ 12", "Option {}"):
        assert same(gold, form.format(letter)) is (gold == letter)
        assert same(rf"\text{{({gold})}}", form.format(letter)) is (gold == letter)


DEEP_OR_LONG = (
    "(" * 100 + "1" + ")" * 100,
    "-" * 200 + "1",
    r"\{" * 60 + r"\}" * 60,
    "1" + "!" * 200,
    "x^{" * 50 + "2" + "}" * 50,
    ",".join("abcdfghjkl" * 5),
)
BOMBS = (r"9^{9^{9^9}}", r"(3\cdot 10^{8})!", r"((10^9)!)!", r"2^{2^{2^{2^{2^{2}}}}}", "10**10**10", r"\binom{10^{30}}{10^{15}}")


@pytest.mark.parametrize("text", DEEP_OR_LONG)
def test_deep_and_long_answers_are_refused_or_judged_at_once(text: str) -> None:
    for gold in ("5", text + "+1"):
        for _ in range(5):
            assert compare_answers(gold, text).verdict != "same"


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_cannot_be_computed_is_equal_to_itself_alone(bomb: str) -> None:
    assert same(bomb, bomb.replace("^", " ^ "))
    assert not same("1", bomb)
    assert not same(bomb, "1")
    assert not same(bomb, bomb + "+1")
    assert same("3", f"3 + {bomb} - {bomb}")
