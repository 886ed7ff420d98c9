"""The runner's own promises: what it prints, how it exits, and that a dangerous case runs apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.case import BadCase, parse_case, text_of
from tests.cases.runner import run_cases

RUN = Path(__file__).with_name("run.py")
ROOT = Path(__file__).resolve().parents[2]


def a_case(case_id: str, gold: str, answer: str, correct: bool, **more: object) -> str:
    fields = {
        "id": case_id,
        "source": "own",
        "story": "",
        "input": {"gold": gold, "response": rf"\boxed{{{answer}}}"},
        "expect": {"correct": correct},
    }
    return json.dumps({**fields, **more})


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)


def test_a_failed_case_is_one_line_and_the_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(a_case("good", "5", "5", True) + "\n\n" + a_case("bad", "5", "6", True) + "\n")

    ran = run("math", str(path))

    lines = ran.stdout.splitlines()
    assert lines[0].startswith("bad: correct (wrong, other_value, read '6'): expected true, found false")
    assert lines[1:] == ["1 passed, 1 failed"]
    assert ran.returncode == 1


def test_json_goes_alone_to_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(a_case("good", "5", "5", True))

    ran = run("math", str(path), "--json")

    assert json.loads(ran.stdout) == {"area": "math", "file": str(path), "passed": 1, "failed": 0, "failures": []}
    assert ran.stderr.splitlines()[-1] == "1 passed, 0 failed"
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("area", "content", "said"),
    [
        ("math", "{}", "cases.jsonl:1: `id` must be a text"),
        ("math", "no json", "cases.jsonl:1: no JSON"),
        ("cooking", "", "invalid choice: 'cooking'"),
    ],
)
def test_a_file_or_area_that_is_no_good_is_named(tmp_path: Path, area: str, content: str, said: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(content)

    ran = run(area, str(path))

    assert said in ran.stderr
    assert ran.returncode == 2


async def test_a_dangerous_case_runs_apart_and_its_differences_come_back() -> None:
    good = parse_case(a_case("good", "5", "5", True, danger="grows"))
    bad = parse_case(a_case("bad", "5", "6", True, danger="grows"))

    results = await run_cases("math", [good, bad])

    assert [result.passed for result in results] == [True, False]
    assert "expected true, found false" in results[1].line()


def test_text_is_given_or_made() -> None:
    assert text_of({"response": "as it is"}, "response") == "as it is"
    assert text_of({"response_gen": {"prefix": "<", "repeat": "ab", "times": 3, "suffix": ">"}}, "response") == "<ababab>"
    with pytest.raises(BadCase, match="expected `response` or `response_gen`"):
        text_of({}, "response")
