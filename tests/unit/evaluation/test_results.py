"""The file of results: what is in it is done, whole, and of one evaluation."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from ops.evaluation import FileTaken, NotThisEvaluation, ResultsFile, RowResult, numbers_as_map, numbers_of, plan_of
from pipeline.errors import InvalidRequest

HEADER = {"task": "math", "digest": "abc", "n": 2}


def a_row(name: str, *scores: float | None, why: str = "infra_failure") -> RowResult:
    def sample(score: float | None) -> dict[str, object]:
        return {"score": score, "passes": score == 1.0, "why": "" if score is not None else why, "sampled_tokens": 10}

    return RowResult(row=name, samples=tuple(map(sample, scores or (1.0, 0.0))))


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add([a_row("a"), a_row("b", None, 0.5)])

    with ResultsFile(path, HEADER) as again:
        assert list(again.rows) == ["a", "b"]
        assert again.rows["b"].scores == (None, 0.5)
        again.add([a_row("c")])

    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert lines[0] == {"header": HEADER}
    assert [line["row"] for line in lines[1:]] == ["a", "b", "c"]


@pytest.mark.parametrize("torn", [b'{"row": "b", "samp', b"{", b'{"row":"b","samples":[]}'])
def test_a_line_that_a_crash_cut_short_is_taken_away(tmp_path: Path, torn: bytes) -> None:
    """Appended to, it became one line with the next row: that row was done and could not be read."""
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add([a_row("a")])
    with path.open("ab") as file:
        file.write(torn)

    with ResultsFile(path, HEADER) as again:
        assert list(again.rows) == ["a"]
        again.add([a_row("b")])

    assert [orjson.loads(line).get("row") for line in path.read_bytes().splitlines()] == [None, "a", "b"]


def test_a_header_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"header":{"tas')

    with ResultsFile(path, HEADER):
        pass

    assert orjson.loads(path.read_bytes()) == {"header": HEADER}


@pytest.mark.parametrize("name", ["task", "digest", "n"])
def test_another_evaluations_file_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add([a_row("a")])
    before = path.read_bytes()

    with pytest.raises(NotThisEvaluation, match=f"of another evaluation .{name} "), ResultsFile(path, {**HEADER, name: "other"}):
        pass

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"my notes", b'{"id": 1}\n', b'{"header": {"task": "math", "digest": "abc", "n": 2}}\nnotes\n']
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)

    with pytest.raises(NotThisEvaluation, match="name another"), ResultsFile(path, HEADER):
        pass

    assert path.read_bytes() == content


def test_two_at_a_time_do_not_write_one_file(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "r.jsonl", HEADER), pytest.raises(FileTaken), ResultsFile(tmp_path / "r.jsonl", HEADER):
        pass


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"out: .*No such file"), ResultsFile(tmp_path / "no/r.jsonl", HEADER):
        pass


def test_numbers_say_what_they_are_of() -> None:
    rows = [a_row("a", 1.0, 1.0), a_row("b", 0.0, 1.0), a_row("c", None, 0.0), a_row("d", None, None, why="expired")]

    numbers = numbers_of(rows, ks=(1, 2), rows_asked=6)

    shown = numbers_as_map(numbers)
    assert shown["metrics"]["pass@1"]["value"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert shown["metrics"]["pass@1"]["rows"] == 3
    assert shown["metrics"]["pass@2"]["value"] == 1.0  # of the two rows with two valid samples
    assert shown["metrics"]["mean score"]["value"] == pytest.approx(0.5)
    assert (numbers.rows, numbers.rows_asked, numbers.valid, numbers.asked, numbers.is_whole) == (4, 6, 5, 8, False)
    assert list(numbers.why_invalid.items()) == [("expired", 2), ("infra_failure", 1)]
    low, high = shown["metrics"]["pass@1"]["low"], shown["metrics"]["pass@1"]["high"]
    assert 0 < low < 0.5 < high < 1


ROWS = [{"id": f"r{number}", "question": f"{number}+1?", "answer": str(number + 1)} for number in range(300)]


def test_a_plan_is_the_same_whenever_the_same_is_asked() -> None:
    plan = plan_of({"task": "math", "run_seed": 1}, ROWS, n=4, threshold=1.0, metric="score")
    again = plan_of({"task": "math", "run_seed": 1}, list(ROWS), n=4, threshold=1.0, metric="score")

    assert (plan.run, plan.digest) == (again.run, again.digest)
    assert [len(batch.rows) for batch in plan.batches] == [4] * 75
    assert [name for batch in plan.batches for name in batch.names] == [row["id"] for row in ROWS]
    assert (plan.n_rows, plan.n_jobs) == (300, 1200)
    assert not plan.template.exact_logprobs


def test_whatever_else_is_asked_has_another_name() -> None:
    def named(rows: list[dict[str, str]] = ROWS[:3], n: int = 4, threshold: float = 1.0, **fields: object) -> str:
        return plan_of({"task": "math", **fields}, rows, n=n, threshold=threshold, metric="score").run

    names = [
        named(),
        named(rows=ROWS[:2]),
        named(rows=[*ROWS[:2], {**ROWS[2], "id": "other"}]),
        named(n=5),
        named(threshold=0.5),
        named(sampling={"temperature": 0.5}),
        named(options={"tools": False}),
        named(run_seed=3),
    ]

    assert len(set(names)) == len(names)
    assert all(name.startswith("eval-math-") for name in names)
