"""Files of problems: what is read, and what is said about what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.handlers.math.data import SHIPPED, BadProblems, load_problems, load_shipped

LARGEST_FILE_BYTES = 150_000


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def a_problem(**fields: object) -> dict[str, object]:
    return {"id": "p1", "question": "What is $1+1$?", "answer": "2", **fields}


def test_a_header_speaks_for_the_problems_that_do_not_speak_for_themselves(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"header": {"name": "sums", "worked_out": True}}, a_problem(), "", a_problem(id="p2", worked_out=False, source="me")
    )

    found = load_problems(path)

    assert found.name == "sums"
    assert [(problem.id, problem.worked_out, problem.source) for problem in found.problems] == [("p1", True, ""), ("p2", False, "me")]


def test_a_file_needs_no_header(tmp_path: Path) -> None:
    found = load_problems(written(tmp_path, a_problem()))

    assert (found.name, found.header, len(found.problems)) == ("problems", {}, 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": ', r"problems\.jsonl:2: no JSON"),
        ("[1]", r":2: expected an object, found list"),
        ({"id": "p2", "question": "?"}, r"answer.*:2: expected a text that is not empty, found None"),
        (a_problem(id="p2", answer=2), r"answer.*:2: expected a text.*found 2"),
        (a_problem(id="p2", answer=" "), r"answer.*:2: expected a text that is not empty"),
        (a_problem(id="p2", question="x" * 30_000), r"question.*:2: 30000 characters, at most 20000"),
        (a_problem(id="p2", anser="2"), r":2: unknown fields anser; known are answer, id"),
        (a_problem(id="p2", worked_out="yes"), r"worked_out.*:2: expected true or false"),
        (a_problem(), r":2: the id 'p1' is already on line 1"),
        ({"header": {}}, r":2: unknown fields header"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: object, said: str) -> None:
    with pytest.raises(BadProblems, match=said):
        load_problems(written(tmp_path, a_problem(), line))


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProblems, match="No such file"):
        load_problems(tmp_path / "nothing.jsonl")
    with pytest.raises(BadProblems, match="no problem in it"):
        load_problems(written(tmp_path, {"header": {"name": "empty"}}))
    with pytest.raises(BadProblems, match="there are: arithmetic, competition"):
        load_shipped("geometry")


@pytest.mark.parametrize(("name", "least"), [("arithmetic", 300), ("competition", 40)])
def test_shipped_sets_say_what_they_are(name: str, least: int) -> None:
    found = load_shipped(name)

    assert name in SHIPPED
    assert len(found.problems) == found.header["items"] >= least
    assert found.header["licence"] == "Apache-2.0"
    assert len({problem.question for problem in found.problems}) == len(found.problems)
    assert (Path(__file__).resolve().parents[3] / "workers/handlers/math/problems" / f"{name}.jsonl").stat().st_size < LARGEST_FILE_BYTES
