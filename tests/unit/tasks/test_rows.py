"""The rows that commands work on, and what a command line asks beside them."""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest

from ops.tasks.request import request_fields, template_request
from ops.tasks.rows import NoRows, read_rows, spec_of
from pipeline.errors import InvalidRequest
from pipeline.messages import JobTemplate
from workers.handlers.math.handler import MathHandler
from workers.handlers.task_data import BadTaskData


def a_file(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_are_those_of_the_file_else_the_samples(tmp_path: Path) -> None:
    own = read_rows(MathHandler(), a_file(tmp_path / "mine.jsonl", [{"id": "a", "question": "1+1?", "answer": "2"}]))
    samples = read_rows(MathHandler(), None, limit=7)

    assert [row["id"] for row in own.rows] == ["a"]
    assert own.sources == (str(tmp_path / "mine.jsonl"),)
    assert len(samples.rows) == 7
    assert samples.sources == ("arithmetic.jsonl", "competition.jsonl")


def test_a_row_is_named_by_its_id_or_its_place(tmp_path: Path) -> None:
    file = a_file(tmp_path / "m.jsonl", [{"id": name, "question": "1+1?", "answer": "2"} for name in ("b", "0", "7")])
    rows = read_rows(MathHandler(), file)

    assert rows.named("b")["id"] == "b"
    assert rows.named("0")["id"] == "0"  # an id goes before a place
    assert rows.named("2")["id"] == "7"
    with pytest.raises(NoRows, match="no row 'x' among 3; they are called b, 0, 7"):
        rows.named("x")


def test_a_file_with_a_row_that_is_no_problem_is_refused_whole_whatever_the_limit(tmp_path: Path) -> None:
    file = a_file(tmp_path / "m.jsonl", [{"question": "1+1?", "answer": "2"}, {"question": "", "answer": "2"}])

    with pytest.raises(BadTaskData, match=r"m\.jsonl:2: "):
        read_rows(MathHandler(), file, limit=1)


def test_a_line_that_breaks_off_is_told_with_the_place_where_it_does(tmp_path: Path) -> None:
    """The end of the line was read as a line of its own, and the place was its column 1."""
    (tmp_path / "cut.jsonl").write_text('{"question": "x", "answer":\n')

    with pytest.raises(BadTaskData, match=r"cut\.jsonl:1: no JSON: .* at column 28"):
        read_rows(MathHandler(), tmp_path / "cut.jsonl")


def test_a_row_of_two_files_is_there_once(tmp_path: Path) -> None:
    class Twice(MathHandler):
        samples: tuple[Traversable, ...] = tuple(
            a_file(tmp_path / f"{name}.jsonl", [{"id": "a", "question": f"{name}?", "answer": "2"}]) for name in ("one", "two")
        )

    assert [row["question"] for row in read_rows(Twice(), None).rows] == ["one?"]


def test_a_row_becomes_the_job_that_it_would_be() -> None:
    spec = spec_of(JobTemplate(task="math"), {"id": "a", "question": "1+1?", "answer": "2"}, 3)

    assert (spec.prompt.id, spec.prompt.data["question"], spec.job) == ("a", "1+1?", "foreground.3")


def test_what_the_command_line_names_goes_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(
        json.dumps({"options": {"tools": True, "abs_tol": 0.5}, "sampling": {"temperature": 0.6, "top_p": 0.9}, "limits": {"max_turns": 3}})
    )

    fields = request_fields(
        "math", file, options=["tools=false", "note=as text"], sampling={"temperature": 0.0, "top_p": None}, model=None, run_seed=7
    )

    template = template_request(fields).template()
    assert template.options == {"tools": False, "abs_tol": 0.5, "note": "as text"}
    assert (template.sampling.temperature, template.sampling.top_p, template.limits.max_turns, template.run_seed) == (0.0, 0.9, 3, 7)


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ('{"task": "code"}', [], "is a request for 'code', not for 'math'"),
        ("[1]", [], "expected an object with the fields of a request"),
        ("{", [], "cannot be read: no JSON"),
        ("{}", ["tools=[bash]"], r"options.tools: expected JSON, as in 'tools=\[.bash., .finish.\]', got '\[bash\]'"),
        ('{"capability": "isolated-network"}', [], "capability: no class of sandboxes .*; did you mean 'isolated.network'"),
        ('{"options": 3}', ["a=1"], "options: expected an object"),
        ("{}", ["tools"], "expected name=value, got 'tools'"),
        ('{"limit": {}}', [], "limit"),
        ('{"sampling": {"temperature": "hot"}}', [], "sampling.temperature"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, content: str, options: list[str], said: str) -> None:
    file = tmp_path / "request.json"
    file.write_text(content)

    with pytest.raises(InvalidRequest, match=said):
        template_request(request_fields("math", file, options=options))
