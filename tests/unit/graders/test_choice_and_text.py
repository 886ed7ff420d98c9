"""Choices by letter and by text, and short texts against several right ones."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.graders.choice import chosen, compare_choices
from workers.graders.final_answer import final_answer
from workers.graders.short_text import compare_texts

OPTIONS = ("12 m/s", "24 m/s", "mitochondria", r"$\alpha$-helix")


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ("B", 1),
        ("b", 1),
        ("(B)", 1),
        ("B.", 1),
        (r"\text{B}", 1),
        ("Option B", 1),
        ("B) 24 m/s", 1),
        ("24 m/s", 1),
        ("The mitochondria.", 2),
        ("C: mitochondria", 2),
        ("alpha helix", 3),
        ("E", None),  # there are four
        ("A or B", None),
        ("A) 24 m/s", None),  # the letter says one thing, the text another
        ("B: C", None),
        ("(A)(B)", None),
        ("ABCD", None),
        ("36 m/s", None),
        ("mitochondria or chloroplasts", None),
        ("", None),
        ("B" * 5_000, None),
    ],
)
def test_an_option_is_chosen_by_its_letter_or_its_text(answer: str, place: int | None) -> None:
    assert chosen(answer, OPTIONS) == place


def test_a_lone_letter_is_the_letter_of_an_option_even_where_options_are_letters() -> None:
    blood = ("O", "B", "A", "AB")

    assert (chosen("A", blood), chosen("AB", blood), chosen("O", blood), chosen("C) A", blood)) == (0, 3, 0, 2)


def test_without_the_options_only_letters_are_known() -> None:
    assert (chosen("C", ()), chosen("C) 12 m/s", ()), chosen("mitochondria", ())) == (2, 2, None)


def test_a_wrong_choice_is_told_from_none() -> None:
    verdicts = [compare_choices(1, answer, OPTIONS) for answer in ("B", "C", "none of them")]

    assert [(verdict.kind, verdict.reason) for verdict in verdicts] == [
        ("right", "choice"),
        ("wrong", "other_choice"),
        ("unreadable", "no_choice"),
    ]


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        ("Krebs cycle", "the krebs-cycle."),
        ("citric acid cycle", r"\text{Citric acid cycle}"),
        ("H2O", r"\mathrm{H_2O}"),
        ("H2O", "H₂O"),
        ("H2O", "h2o"),
        ("α-helix", r"$\alpha$ helix"),
        ("Na+", "Na⁺"),
        ("-5", "−5"),
        ("DNA polymerase", "The answer is DNA polymerase"),
    ],
)
def test_the_same_words_are_right(right: str, answer: str) -> None:
    assert compare_texts((right,), answer).is_right


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        ("Co", "CO"),
        ("CO", "Co"),
        ("Cl-", "Cl"),
        ("-5", "5"),
        ("mitosis", "meiosis"),
        ("mitosis", "mitosis or meiosis"),
        ("mitosis", "not mitosis"),
        ("mitosis", ""),
        ("mitosis", "mitosis " * 1_000),
    ],
)
def test_other_words_are_not(right: str, answer: str) -> None:
    assert not compare_texts((right,), answer).is_right


def test_each_alternative_is_right() -> None:
    verdicts = [compare_texts(("citric acid cycle", "Krebs cycle"), answer).kind for answer in ("Krebs cycle", "TCA", " ")]

    assert verdicts == ["right", "wrong", "unreadable"]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First \boxed{A}, then \boxed{ B }.", "B"),
        ("B", "B"),
        (r"\boxed{A} or \boxed{", None),
        ("It could be A.\nIt could be B.", None),
        ("x" * 300, None),
        ("  ", None),
    ],
)
def test_the_answer_is_the_last_box_or_all_of_a_short_response(response: str, answer: str | None) -> None:
    assert final_answer(response) == answer


PIECES = (
    "A",
    "(",
    ")",
    ".",
    ":",
    " ",
    "or ",
    "the ",
    "answer is ",
    "\\text{",
    "}",
    "\\",
    "{",
    "$",
    "-",
    "_",
    "^",
    "é",
    "₂",
    "\u202e",
    "C6",
    "=",
)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_has_a_verdict(answer: str) -> None:
    assert compare_choices(0, answer, OPTIONS).kind in ("right", "wrong", "unreadable")
    assert compare_texts(("Krebs cycle", "H2O"), answer).kind in ("right", "wrong", "unreadable")


@pytest.mark.parametrize("piece", PIECES)
def test_a_long_text_of_one_piece_costs_next_to_nothing(piece: str) -> None:
    """No pattern goes back and forth over it."""
    answer = piece * (2_000 // len(piece))
    started = time.process_time()

    compare_choices(0, answer, OPTIONS)
    compare_texts(("Krebs cycle",), answer)

    assert time.process_time() - started < 0.25
