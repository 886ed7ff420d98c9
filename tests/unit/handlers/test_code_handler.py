"""The task `code` up to the sandbox: what is asked, with which options, and what costs no sandbox."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import RewardSource
from tests.judged import eval_context, spec_of
from workers.graders.code import RunLimits
from workers.handlers.base import NoSandboxes
from workers.handlers.code.fences import fenced, last_program
from workers.handlers.code.handler import SAMPLES, CodeHandler
from workers.handlers.code.layouts import LAYOUTS
from workers.handlers.code.options import read_options
from workers.handlers.submission import submitted
from workers.handlers.task_data import load_rows, problem_in

ROW = {"question": "Add one.", "tests": [{"stdin": "1", "expected": "HIDDEN-OUTPUT"}], "solution": "print('HIDDEN-OUTPUT')"}


def messages(row: Mapping[str, object], options: Mapping[str, object] | None = None) -> list[str]:
    return [message.content for message in CodeHandler().messages(spec_of("code", row, options))]


def test_the_model_is_told_how_to_hand_in_and_nothing_of_the_tests() -> None:
    plain, without, in_file = messages(ROW), messages(ROW, {"tools": False}), messages(ROW, {"solution_file": "answer.py"})

    assert "```python" in plain[0]
    assert "finish" in plain[0]
    assert "tool" not in without[0]
    assert "answer.py" in in_file[0]
    assert plain[1].startswith("Add one.")
    assert not any("HIDDEN" in text for text in (*plain, *without, *in_file))


def test_a_program_that_is_called_is_asked_for_as_one() -> None:
    row = {"question": "Add one.", "entry": "f", "starter": "def f(x):", "tests": [{"args": [1], "expected": 2}]}

    asked = messages(row)[1]

    assert "imported and called" in asked
    assert "```python\ndef f(x):\n```" in asked


def test_every_sample_can_be_asked_and_names_its_solution() -> None:
    handler = CodeHandler()
    rows = load_rows(SAMPLES[0], handler.layouts).rows

    for row in rows:
        spec, problem = spec_of("code", row), problem_in(row, LAYOUTS)
        gold = handler.gold(spec)
        assert gold is not None
        assert (last_program(gold.answer) or "").strip() == problem.solutions[0].strip()
        assert handler.messages(spec)[-1].content.startswith(problem.question)
    assert {len(row["tests"]) > 1 for row in rows if isinstance(row["tests"], list)} == {True}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tool": True}, "options.tool: the task code has no such option; did you mean 'tools'?"),
        ({"tools": ["gdb"]}, "expected true, false, or a list out of bash"),
        ({"reward": "half"}, "'all' or 'fraction'"),
        ({"reward": "fraction", "stop_at_failure": True}, "reward has to be"),
        ({"solution_file": "a.py", "tools": ["think"]}, "a tool that writes files"),
        ({"solution_file": 1}, "a text"),
        ({"time_s": "4"}, "a number"),
        ({"stop_at_failure": 1}, "true or false"),
    ],
)
def test_options_that_cannot_be_meant_are_named(options: Mapping[str, object], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        CodeHandler().check_options(options)


def test_options_go_before_the_row() -> None:
    row = {**ROW, "tests": ROW["tests"] * 3, "limits": {"time_s": 1, "memory_mb": 64}, "float_tol": 0.1}  # type: ignore[operator]  # a list

    tests = read_options({"max_tests": 2, "time_s": 2, "float_tol": 0.01}).applied(problem_in(row, LAYOUTS).tests)

    assert (len(tests.tests), tests.limits, tests.float_tol) == (2, RunLimits(time_s=2, memory_mb=64), 0.01)
    with pytest.raises(InvalidRequest, match="memory_mb"):
        read_options({"memory_mb": 1}).applied(tests)


async def test_a_row_without_tests_is_asked_and_not_judged() -> None:
    """Its reward comes from outside, or its job ends before it costs a sandbox."""
    handler = CodeHandler()
    spec = spec_of("code", {"question": "Add one."}, reward=RewardSource.OUTSIDE)

    assert handler.messages(spec)[-1].content == "Add one."
    with pytest.raises(InvalidRequest):
        await handler.evaluate(eval_context(spec, submitted(fenced("print(1)"))))


async def test_a_worker_without_sandboxes_hands_the_job_back() -> None:
    with pytest.raises(NoSandboxes):
        await CodeHandler().evaluate(eval_context(spec_of("code", ROW), submitted(fenced("print(1)"))))
