"""The rows that the task `code` reads: our own layout, and those of the field's data sets (`public_layouts.py`).

    rollstream      question, tests; entry, starter, solution, setup, float_tol, limits, id, source, meta (whatever else)
    Eurus-2-RL      prompt (a dialogue), reward_model.ground_truth (JSON: inputs, outputs, fn_name), ability = code
    TACO/APPS       question, input_output (JSON: inputs, outputs, fn_name), solutions, starter_code
    LiveCodeBench   question_content, public_test_cases, private_test_cases, starter_code, metadata (func_name)
    HumanEval       prompt, test, entry_point, canonical_solution
    MBPP            text or prompt, code, test_list, test_setup_code, test_imports

A test of ours is one of

    {"stdin": text, "expected": text}
    {"args": [...], "expected": value, "also": [other right values]}      with `entry`: a function, or `Class.method`
    {"source": program}                                                    asserts; `setup` of the row runs before each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workers.graders.code import AssertTest, CallTest, CodeTests, RunLimits, StdioTest, Test
from workers.handlers.code.problem import MAX_CHARS, MAX_TESTS, Problem, why_no_program
from workers.handlers.code.public_layouts import PUBLIC
from workers.handlers.task_data import BadTaskData, Layout, Row, only_known, text_of

_FIELDS = frozenset(
    ("id", "question", "tests", "entry", "starter", "solution", "setup", "float_tol", "limits", "source", "meta"),
)
_LIMITS = frozenset(("time_s", "memory_mb", "output_bytes", "processes"))


def _ours(row: Row, place: str) -> Problem:
    only_known(row, _FIELDS, place)
    entry = _optional(row, "entry", place)
    setup = _optional(row, "setup", place)
    listed = row["tests"]
    if not isinstance(listed, list | tuple) or not 1 <= len(listed) <= MAX_TESTS:
        raise BadTaskData(f"{place}: expected a list of 1 to {MAX_TESTS} tests, found {listed!r:.80}", field="tests")
    tests = [_test(test, entry, setup, f"{place}, test {number}") for number, test in enumerate(listed, start=1)]
    solution = _optional(row, "solution", place)
    try:
        code_tests = CodeTests(tests=tests, entry=entry, limits=_limits(row.get("limits"), place), float_tol=_tolerance(row, place))
    except ValueError as refused:
        raise BadTaskData(f"{place}: {refused}", field="tests") from refused
    return Problem(
        question=text_of(row, "question", place, longest=MAX_CHARS).strip(),
        tests=code_tests,
        starter=_optional(row, "starter", place),
        solutions=(solution,) if solution else (),
    )


def _test(test: object, entry: str, setup: str, place: str) -> Test:
    if not isinstance(test, Mapping):
        raise BadTaskData(f"{place}: expected a map, found {test!r:.80}", field="tests")
    names = frozenset(test)
    if names == {"stdin", "expected"} and isinstance(test["stdin"], str) and isinstance(test["expected"], str):
        return StdioTest(stdin=test["stdin"], expected=test["expected"])
    if {"args", "expected"} <= names <= {"args", "expected", "also"} and isinstance(test["args"], list | tuple):
        if not entry:
            raise BadTaskData(f"{place}: a test that calls, and the row has no entry", field="entry")
        return CallTest(arguments=list(test["args"]), accepted=[test["expected"], *test.get("also", ())])
    if names == {"source"} and isinstance(test["source"], str) and test["source"].strip():
        why = why_no_program(setup) or why_no_program(test["source"])
        if why:
            raise BadTaskData(f"{place}: expected a program of asserts: {why}", field="tests")
        return AssertTest(source=test["source"], setup=setup)
    raise BadTaskData(f"{place}: expected stdin and expected, args and expected, or source; found {sorted(map(str, names))}", field="tests")


def _limits(value: object, place: str) -> RunLimits:
    if value is None:
        return RunLimits()
    if not isinstance(value, Mapping) or not set(value) <= _LIMITS:
        raise BadTaskData(f"{place}: expected a map of {', '.join(sorted(_LIMITS))}, found {value!r:.80}", field="limits")
    for name, one in value.items():
        if isinstance(one, bool) or not isinstance(one, int | float) or (name != "time_s" and not isinstance(one, int)):
            raise BadTaskData(f"{place}: expected a number, found {one!r:.80}", field=f"limits.{name}")
    try:
        return RunLimits(**value)
    except ValueError as refused:
        raise BadTaskData(f"{place}: {refused}", field="limits") from refused


def _tolerance(row: Row, place: str) -> float | None:
    value = row.get("float_tol")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadTaskData(f"{place}: expected a number, found {value!r:.80}", field="float_tol")
    return float(value)


def _optional(row: Row, name: str, place: str) -> str:
    return "" if row.get(name) in (None, "") else text_of(row, name, place, longest=MAX_CHARS)


LAYOUTS: Sequence[Layout[Problem]] = (Layout(name="rollstream", columns=frozenset(("question", "tests")), read=_ours), *PUBLIC)


def _question_alone(name: str) -> Layout[Problem]:
    def read(row: Row, place: str) -> Problem:
        return Problem(question=text_of(row, name, place, longest=MAX_CHARS).strip(), tests=CodeTests(tests=()))

    return Layout(name=f"{name} alone", columns=frozenset((name,)), read=read)


QUESTIONS: Sequence[Layout[Problem]] = (*LAYOUTS, *map(_question_alone, ("question", "question_content")))
"""What can be asked, though perhaps not judged here: the reward of such a row comes from outside."""
