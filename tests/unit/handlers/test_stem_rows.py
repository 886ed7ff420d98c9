"""Rows of natural science: what each layout reads, how options are shown, and what is said about what cannot be read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from workers.handlers.stem.handler import SAMPLES
from workers.handlers.stem.layouts import LAYOUTS, QUESTIONS
from workers.handlers.stem.problem import Kind
from workers.handlers.task_data import BadTaskData, layout_of, load_rows, problem_in

GPQA: dict[str, object] = {
    "Record ID": "rec06pnAkLOr2t2mp",
    "Question": "Which is it?",
    "Correct Answer": "10^-4 eV\n",
    "Incorrect Answer 1": "10^-11 eV",
    "Incorrect Answer 2": "10^-8 eV",
    "Incorrect Answer 3": "10^-9 eV",
    "Explanation": "so",
    "Subdomain": "Physics (general)",
}


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("layout", "row", "kind", "answers"),
    [
        ("rollstream", {"question": "?", "answer": "9.81", "unit": "m/s^2", "rel_tol": 0.02}, Kind.VALUE, ("9.81",)),
        ("rollstream", {"question": "?", "answer": 8}, Kind.VALUE, ("8",)),
        ("rollstream", {"question": "?", "answer": "osmosis", "also": ["osmotic flow"]}, Kind.TEXT, ("osmosis", "osmotic flow")),
        ("rollstream", {"question": "?", "answer": "NaCl"}, Kind.TEXT, ("NaCl",)),
        ("rollstream", {"question": "?", "answer": "2", "kind": "text"}, Kind.TEXT, ("2",)),
        ("rollstream", {"question": "?", "answer": "red", "options": ["red", "blue"]}, Kind.CHOICE, ("red",)),
        ("GPQA", GPQA, Kind.CHOICE, ("10^-4 eV",)),
        (
            "MMLU-Pro",
            {"question_id": 70, "question": "?", "options": ["a", "b"], "answer": "B", "answer_index": 1, "src": "x"},
            Kind.CHOICE,
            ("b",),
        ),
        ("SCP-116K", {"domain": "physics", "problem": "?", "solution": r"so \boxed{3.2\ \mathrm{mJ}}"}, Kind.VALUE, (r"3.2\ \mathrm{mJ}",)),
        ("SCP-116K", {"problem": "?", "solution": "6.0 kJ/mol"}, Kind.VALUE, ("6.0 kJ/mol",)),
        ("SCP-116K", {"problem": "?", "solution": r"\frac{mv^2}{r}"}, Kind.FORMULA, (r"\frac{mv^2}{r}",)),
        ("SCP-116K", {"problem": "?", "solution": "competitive inhibition"}, Kind.TEXT, ("competitive inhibition",)),
        ("SCP-116K", {"problem": "Which one? (A) red (B) blue (C) green", "solution": "(B)"}, Kind.CHOICE, ("B",)),
        ("verl", {"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": r"\boxed{5 N}"}}, Kind.VALUE, ("5 N",)),
    ],
)
def test_each_layout_is_told_by_its_columns(layout: str, row: dict[str, object], kind: Kind, answers: tuple[str, ...]) -> None:
    assert layout_of(row, LAYOUTS, "row").name == layout

    found = problem_in(row, LAYOUTS)

    assert (found.kind, found.answers) == (kind, answers)


def test_options_stand_in_an_order_of_the_row_alone() -> None:
    """All members of a group see one order, and EVAL knows it."""
    orders = {problem_in(dict(GPQA), LAYOUTS).options for _ in range(5)}
    as_loaded = problem_in({**GPQA, "id": "rec06pnAkLOr2t2mp"}, LAYOUTS)

    assert orders == {as_loaded.options}
    assert as_loaded.options[as_loaded.right] == "10^-4 eV"


def test_the_right_letter_is_any_of_them() -> None:
    letters = Counter(problem_in({**GPQA, "Record ID": f"rec{number}"}, LAYOUTS).right for number in range(400))

    assert set(letters) == {0, 1, 2, 3}
    assert min(letters.values()) > 60


def test_an_order_that_must_stay_stays() -> None:
    options = ["one", "two", "three", "none of these"]
    rows = [{"id": str(number), "question": "?", "answer": "two", "options": options} for number in range(20)]

    kept = {problem_in({**row, "shuffle": False}, LAYOUTS).options for row in rows}
    shuffled = {problem_in(row, LAYOUTS).options for row in rows}

    assert kept == {tuple(options)}
    assert len(shuffled) > 5


def test_the_model_reads_the_options_and_what_is_wished() -> None:
    choice = problem_in({"question": "Which?", "answer": "b", "options": ["a", "b"], "shuffle": False}, LAYOUTS)
    value = problem_in({"question": "How far?", "answer": "3", "unit": "km"}, LAYOUTS)

    assert choice.asked() == "Which?\n\nA. a\nB. b\n\nAnswer with the letter of the right option."
    assert value.asked() == "How far?\n\nAnswer with a number and its unit, in km."
    assert (choice.gold(), value.gold()) == (r"\boxed{B}", r"\boxed{3 km}")


def test_a_row_whose_reward_comes_from_outside_needs_no_answer() -> None:
    assert problem_in({"question": "?"}, QUESTIONS).question == "?"
    with pytest.raises(BadTaskData, match="fit no layout"):
        problem_in({"question": "?"}, LAYOUTS)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?", "answer": "9", "unti": "m"}, "unknown fields unti"),
        ({"question": "?", "answer": "9", "unit": "wombats"}, "answer.*'9 wombats' is no number with a unit"),
        ({"question": "?", "answer": "nine", "unit": "m"}, "answer.*is no number"),
        ({"question": "?", "answer": "9", "kind": "essay"}, "kind.*expected choice, value, text, formula"),
        ({"question": "?", "answer": "9", "rel_tol": -1}, "rel_tol.*expected a number from 0"),
        ({"question": "?", "answer": "9", "rel_tol": True}, "rel_tol"),
        ({"question": "?", "answer": "9", "digits": 0}, "digits.*expected 1 to 30"),
        ({"question": "?", "answer": "9", "unit_needed": "yes"}, "unit_needed.*expected true or false"),
        ({"question": "?", "answer": "9", "also": "nine"}, "also.*expected a list"),
        ({"question": "?", "answer": "c", "options": ["a", "b"]}, "options.*expected the answer once among the options.*0 times"),
        ({"question": "?", "answer": "a", "options": ["a", "a"]}, "options.*2 times"),
        ({"question": "?", "answer": "a", "options": ["a"]}, "options.*expected 2 to 10 options, found 1"),
        ({"question": "?", "answer": "a", "options": "ab"}, "options.*expected JSON"),
        ({"question": "?", "answer": "a", "options": ["a", "b"], "shuffle": 1}, "shuffle.*expected true or false"),
        ({**GPQA, "Incorrect Answer 1": "10^-4 eV"}, "options.*2 times"),
        ({"question": "?", "options": ["a", "b"], "answer_index": 2}, "answer_index.*expected the place of an option"),
        ({"problem": "?", "solution": "long " * 50}, "solution.*boxes no answer and is too long to be one: 249"),
        ({"prompt": [], "reward_model": {"ground_truth": "1"}}, "prompt.*expected a dialogue"),
        ({"prompt": [{"content": "?"}], "reward_model": {}}, "ground_truth"),
    ],
)
def test_a_row_that_is_none_says_why(tmp_path: Path, row: dict[str, object], said: str) -> None:
    with pytest.raises(BadTaskData, match=said):
        load_rows(written(tmp_path, row), LAYOUTS)


def test_the_sample_says_what_it_is_and_has_every_kind_of_every_subject() -> None:
    found = load_rows(SAMPLES[0], LAYOUTS)
    problems = [problem_in(row, LAYOUTS) for row in found.rows]

    assert len(problems) == found.header["items"] >= 40
    assert found.header["licence"] == "Apache-2.0"
    assert len({problem.question for problem in problems}) == len(problems)
    for subject in ("physics", "chemistry", "biology"):
        kinds = {problem.kind for row, problem in zip(found.rows, problems, strict=True) if row["subject"] == subject}
        assert kinds >= {Kind.CHOICE, Kind.VALUE, Kind.TEXT}
    assert len({problem.right for problem in problems if problem.kind is Kind.CHOICE}) == 4
