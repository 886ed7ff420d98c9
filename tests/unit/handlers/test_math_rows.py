"""Rows of mathematical problems: what each layout reads, and what is said about what cannot be read."""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest

from workers.handlers.math.handler import SAMPLES
from workers.handlers.math.layouts import LAYOUTS, QUESTIONS, Problem
from workers.handlers.task_data import BadTaskData, layout_of, load_rows, problem_in

LARGEST_FILE_BYTES = 150_000


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def a_row(**fields: object) -> dict[str, object]:
    return {"id": "p1", "question": "What is $1+1$?", "answer": "2", **fields}


# ---- layouts


@pytest.mark.parametrize(
    ("layout", "row", "answers"),
    [
        ("rollstream", a_row(also=["two", 2.0], meta={"level": 3}), ("2", "two", "2.0")),
        ("rollstream", a_row(answer=["1/2", "0.5"]), ("1/2", "0.5")),
        ("GSM8K", {"question": "?", "answer": "48/2 = <<48/2=24>>24\n48+24 = 72\n#### 72"}, ("72",)),
        ("GSM8K", {"question": "?", "answer": "#### no\n#### 1,200"}, ("1,200",)),
        ("DeepScaleR/AIME", {"problem": "?", "answer": r"-\frac{2}{3}", "solution": r"\boxed{other}"}, (r"-\frac{2}{3}",)),
        ("DeepScaleR/AIME", {"id": 60, "problem": "?", "answer": "204", "url": "u", "year": "2024"}, ("204",)),
        ("AIME (Problem)", {"ID": "2024-II-4", "Problem": "?", "Answer": 33, "Solution": "so"}, ("33",)),
        ("AIME (Question)", {"ID": "1983-1", "Year": 1983, "Question": "?", "Answer": "60", "Part": None}, ("60",)),
        (
            "MATH",
            {"problem": "?", "level": "Level 5", "type": "Algebra", "solution": r"$\boxed{1}$, no: $\boxed{\frac{3}{4}}$."},
            (r"\frac{3}{4}",),
        ),
        ("MATH", {"problem": "?", "solution": r"so $a=\fbox{7}$"}, ("7",)),
        ("MATH", {"problem": "?", "solution": r"so $a=\boxed 7$"}, ("7",)),
        ("MATH", {"problem": "?", "answer": None, "solution": r"$\boxed{(C)}$"}, ("(C)",)),
        ("verl", {"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "34", "style": "rule"}}, ("34",)),
        ("verl", {"prompt": '[{"role": "user", "content": "?"}]', "reward_model": '{"ground_truth": ["1", "2"]}'}, ("1", "2")),
    ],
)
def test_each_layout_is_told_by_its_columns(layout: str, row: dict[str, object], answers: tuple[str, ...]) -> None:
    assert layout_of(row, LAYOUTS, "row").name == layout

    found = problem_in(row, LAYOUTS)

    assert (found.answers, found.worked_out) == (answers, False)
    assert found.question in ("?", "What is $1+1$?")


def test_the_prompt_of_a_dialogue_is_its_last_turn() -> None:
    dialogue = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " What is 2+2? "}]

    found = problem_in({"prompt": dialogue, "reward_model": {"ground_truth": "4"}}, LAYOUTS)

    assert found.question == "What is 2+2?"


def test_a_row_whose_reward_comes_from_outside_needs_no_answer() -> None:
    assert problem_in({"question": "?"}, QUESTIONS) == Problem(question="?", answers=())
    assert problem_in(a_row(), QUESTIONS).answers == ("2",)
    with pytest.raises(BadTaskData, match="fit no layout"):
        problem_in({"question": "?"}, LAYOUTS)


# ---- files


def test_a_header_speaks_for_the_problems_that_do_not_speak_for_themselves(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"header": {"name": "sums", "defaults": {"worked_out": True}}}, a_row(), "", a_row(id="p2", worked_out=False, source="me")
    )

    found = load_rows(path, LAYOUTS)

    assert (found.name, found.layout) == ("sums", "rollstream")
    assert [(row["id"], problem_in(row, LAYOUTS).worked_out) for row in found.rows] == [("p1", True), ("p2", False)]


def test_rows_without_an_id_get_one_of_their_content(tmp_path: Path) -> None:
    row = {"question": "?", "answer": "#### 1"}

    first, again = (load_rows(written(tmp_path, row, row), LAYOUTS).rows for _ in range(2))

    assert first == again
    assert first[0]["id"] != first[1]["id"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": ', r"problems\.jsonl:2: no JSON"),
        ("[1]", r":2: expected an object, found list"),
        (
            {"id": "p2", "question": "?"},
            r":2: columns id, question fit no layout; the nearest is that of rollstream, which lacks answer; the others",
        ),
        (a_row(id="p2", answer=True), r"answer.*:2: expected a text that is not empty, found True"),
        (a_row(id="p2", answer=" "), r"answer.*:2: expected a text that is not empty"),
        (a_row(id="p2", answer=[]), r"answer.*:2: expected 1 to 16 answers, found 0"),
        (a_row(id="p2", also="3"), r"also.*:2: expected a list of texts"),
        (a_row(id="p2", question="x" * 30_000), r"question.*:2: 30000 characters, at most 20000"),
        (a_row(id="p2", anser="2"), r":2: unknown fields anser \(did you mean 'answer'\?\)$"),
        (a_row(id="p2", worked_out="yes"), r"worked_out.*:2: expected true or false"),
        (a_row(), r":2: the id 'p1' is already at"),
        ({"problem": "?", "answer": "1"}, r":2: in the layout of DeepScaleR/AIME, the rows before it in that of rollstream"),
        ({"question": "?", "answer": "#### 1"}, r":2: in the layout of GSM8K"),
        ({"header": {}}, r":2: columns header fit no layout"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: object, said: str) -> None:
    with pytest.raises(BadTaskData, match=said):
        load_rows(written(tmp_path, a_row(), line), LAYOUTS)


def test_a_solution_without_a_box_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(BadTaskData, match=r"solution.*:1: the solution boxes no answer"):
        load_rows(written(tmp_path, {"problem": "?", "solution": "It is 4."}), LAYOUTS)


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTaskData, match="No such file"):
        load_rows(tmp_path / "nothing.jsonl", LAYOUTS)
    with pytest.raises(BadTaskData, match="no row in it"):
        load_rows(written(tmp_path, {"header": {"name": "empty"}}), LAYOUTS)


@pytest.mark.parametrize(("sample", "least"), tuple(zip(SAMPLES, (300, 40), strict=True)), ids=lambda value: str(value).rpartition("/")[2])
def test_shipped_sets_say_what_they_are(sample: Traversable, least: int) -> None:
    found = load_rows(sample, LAYOUTS)

    assert f"{found.name}.jsonl" == sample.name
    assert len(found.rows) == found.header["items"] >= least
    assert found.header["licence"] == "Apache-2.0"
    assert len({str(row["question"]) for row in found.rows}) == len(found.rows)
    assert all(row["worked_out"] is True for row in found.rows)
    assert Path(str(sample)).stat().st_size < LARGEST_FILE_BYTES
