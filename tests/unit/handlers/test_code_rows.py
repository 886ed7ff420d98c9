"""Rows of the task `code`, in our own layout and as the field's data sets have them."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from workers.graders.code import AssertTest, CallTest, CodeTests, StdioTest
from workers.handlers.code.fences import fenced, last_program
from workers.handlers.code.layouts import LAYOUTS
from workers.handlers.code.pickled_text import NotPickledTextError, pickled_text
from workers.handlers.code.problem import Problem
from workers.handlers.task_data import BadTaskData, load_rows, problem_in

Row = Mapping[str, object]


def read(row: Row) -> Problem:
    return problem_in(row, LAYOUTS)


def packed(tests: object, protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests), protocol))).decode()


def test_ours() -> None:
    row = {
        "id": "p",
        "question": "?",
        "entry": "f",
        "tests": [{"stdin": "1", "expected": "2"}, {"args": [1], "expected": 2, "also": [3]}, {"source": "assert f(1) == 2"}],
        "setup": "import math",
        "limits": {"time_s": 1.5},
        "float_tol": 1e-6,
        "solution": "def f(x): return 2",
    }

    problem = read(row)

    assert problem.tests.tests == [
        StdioTest(stdin="1", expected="2"),
        CallTest(arguments=[1], accepted=[2, 3]),
        AssertTest(source="assert f(1) == 2", setup="import math"),
    ]
    assert (problem.tests.limits.time_s, problem.tests.float_tol, problem.solutions) == (1.5, 1e-6, ("def f(x): return 2",))


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"tests": []}, "1 to"),
        ({"tests": [{"stdin": "1"}]}, "stdin and expected"),
        ({"tests": [{"args": [1], "expected": 1}]}, "entry"),
        ({"tests": [{"stdin": "1", "expected": 2}]}, "stdin and expected"),
        ({"float_tol": 7}, "float_tol"),
        ({"limits": {"time_s": 0}}, "time_s"),
        ({"limits": {"speed": 3}}, "expected a map of"),
        ({"limits": {"memory_mb": 1.5}}, "number"),
        ({"slution": ""}, "unknown fields slution"),
    ],
)
def test_a_slip_of_the_pen_in_ours_is_named(changed: Row, word: str) -> None:
    with pytest.raises(BadTaskData, match=word):
        read({"question": "?", "tests": [{"stdin": "1", "expected": "1"}], **changed})


def test_taco_and_apps() -> None:
    stdio = read(
        {
            "question": "Add.",
            "input_output": json.dumps({"inputs": ["1 2", ["3", "4"]], "outputs": ["3\n", ["7"]]}),
            "solutions": '["a", "b"]',
        }
    )
    called = read(
        {"question": "Add.", "input_output": {"inputs": [[1, {"2": 3}]], "outputs": [[5]], "fn_name": "f"}, "starter_code": "def f():"}
    )

    assert stdio.tests.tests == [StdioTest(stdin="1 2", expected="3\n"), StdioTest(stdin="3\n4", expected="7")]
    assert stdio.solutions == ("a", "b")
    assert called.tests.tests == [CallTest(arguments=[1, {2: 3}], accepted=[[5], 5])]
    assert (called.tests.entry, called.starter, called.solutions) == ("f", "def f():", ())


def test_eurus() -> None:
    truth = {"inputs": ["[1, 2]\n3"], "outputs": ["[4]"], "fn_name": "f"}
    row = {
        "data_source": "taco",
        "ability": "code",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Do it."}],
        "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
    }

    problem = read(row)

    assert problem.question == "Do it."
    assert problem.tests.tests == [CallTest(arguments=[[1, 2], 3], accepted=[[4], "[4]"])]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_live_code_bench_with_hidden_tests_that_were_pickled(protocol: int) -> None:
    hidden = [{"input": "[1]\n2", "output": "3", "testtype": "functional"}]
    row = {
        "question_content": "Add.",
        "question_id": "q1",
        "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
        "public_test_cases": json.dumps([{"input": "[5]\n6", "output": "11", "testtype": "functional"}]),
        "private_test_cases": packed(hidden, protocol),
        "metadata": json.dumps({"func_name": "add"}),
    }

    problem = read(row)

    assert problem.tests.tests == [CallTest(arguments=[[5], 6], accepted=[11]), CallTest(arguments=[[1], 2], accepted=[3])]
    assert problem.tests.entry == "add"


def test_live_code_bench_with_standard_input() -> None:
    cases = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]

    problem = read({"question_content": "?", "public_test_cases": json.dumps(cases), "private_test_cases": json.dumps(cases)})

    assert problem.tests.tests == [StdioTest(stdin="1\n", expected="2\n")] * 2
    assert problem.tests.entry == ""


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (open, ("/tmp/rollstream-was-unpickled", "w"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "pickled", [pickle.dumps(Evil()), pickle.dumps(["a"]), pickle.dumps(7), pickle.dumps(("a", "b")), b"", b"\x80\x04."]
)
def test_nothing_is_unpickled_but_a_text(pickled: bytes) -> None:
    row = {"question_content": "?", "public_test_cases": "[]", "private_test_cases": base64.b64encode(zlib.compress(pickled)).decode()}

    with pytest.raises(NotPickledTextError):
        pickled_text(pickled)
    with pytest.raises(BadTaskData, match="nothing is unpickled"):
        read(row)
    assert not Path("/tmp/rollstream-was-unpickled").exists()


@pytest.mark.parametrize("text", ["", "a", "ä\ud800", "x" * 255, "y" * 256, "z" * 300_000])
@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_a_pickled_text_is_read_as_pickle_would(text: str, protocol: int) -> None:
    assert pickled_text(pickle.dumps(text, protocol)) == text


def test_human_eval() -> None:
    prompt = "import math\n\ndef helper(x):\n    return x\n\ndef f(x):\n    '''Twice.'''\n"
    row = {
        "task_id": "HumanEval/0",
        "prompt": prompt,
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 2",
        "entry_point": "f",
    }

    problem = read(row)

    (test,) = problem.tests.tests
    assert isinstance(test, AssertTest)
    assert test.source.endswith("\n\ncheck(f)\n")
    assert problem.preamble == "import math\n\ndef helper(x):\n    return x\n\n"
    assert problem.solutions == (prompt + "    return 2 * x\n",)


@pytest.mark.parametrize("name", ["text", "prompt"])
def test_mbpp_shows_one_test_and_asks_all(name: str) -> None:
    row = {
        "task_id": 7,
        name: "Write f.",
        "code": "def f(x): return x",
        "test_list": ["assert f(1) == 1", "assert f(2) == 2"],
        "test_imports": ["import math"],
    }

    problem = read(row)

    assert problem.tests.tests == [AssertTest(source=f"assert f({n}) == {n}", setup="import math\n") for n in (1, 2)]
    assert "assert f(1) == 1" in problem.question
    assert "f(2)" not in problem.question


def test_mbpp_plus_is_judged_by_its_many_tests() -> None:
    whole = "for n in range(100):\n    assert f(n) == n"
    row = {
        "task_id": 7,
        "prompt": "Write f.",
        "code": "def f(x): return x",
        "test_list": ["assert f(1) == 1"],
        "test_imports": [],
        "test": whole,
    }

    problem = read(row)

    assert problem.tests.tests == [AssertTest(source=whole, setup="")]
    assert "assert f(1) == 1" in problem.question


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"question": "?", "tests": [{"source": "assert f( == 1"}]}, "tests"),
        ({"question": "?", "tests": [{"source": "assert f()"}], "setup": "def"}, "tests"),
        ({"text": "?", "code": "x = 1", "test_list": ["assert f(1) = 1"]}, "test_list"),
        ({"text": "?", "code": "x = 1", "test_list": ["assert f(1)"], "test": "print f(1)"}, "test"),
        ({"prompt": "def f(): ", "test": "def check(candidate) assert", "entry_point": "f"}, "test"),
        ({"prompt": "class ListNode: ...", "test": "def check(candidate): ...", "entry_point": "Solution().merge"}, "entry_point"),
    ],
)
def test_asserts_that_are_no_program_are_refused_when_they_are_read(row: Row, field: str) -> None:
    with pytest.raises(BadTaskData) as refused:
        read(row)

    assert refused.value.field == field


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "input_output": "{}"},
        {"question": "?", "input_output": '{"inputs": ["1"], "outputs": []}'},
        {"question": "?", "input_output": "no json"},
        {"question": "?", "input_output": {"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}},
        {"question_content": "?", "public_test_cases": "[]"},
        {"question_content": "?", "public_test_cases": '[{"input": "1", "output": "1", "testtype": "functional"}]'},
        {"code": "x", "test_list": [], "text": "?"},
        {"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "42"}},
    ],
)
def test_a_row_without_tests_is_refused(row: Row) -> None:
    with pytest.raises(BadTaskData):
        read(row)


def test_raw_files_of_data_sets_are_read_with_their_ids(tmp_path: Path) -> None:
    file = tmp_path / "mbpp.jsonl"
    file.write_text("".join(json.dumps({"task_id": n, "text": "?", "code": "x = 1", "test_list": ["assert f()"]}) + "\n" for n in (11, 12)))

    rows = load_rows(file, LAYOUTS)

    assert (rows.layout, [row["id"] for row in rows.rows]) == ("MBPP", ["11", "12"])


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\nthen\n```py\nb\n```", "b"),
        ("```python\na\n```\n```python\nb", "a"),
        ("```\na\n```", "a"),
        ("```python\na\n```\n```\noutput\n```", "a"),
        ("```js\na\n```", None),
        ("no fence", None),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("~~~Python3\na\n~~~", "a"),
        ("```python\r\na\r\n```\r\n", "a"),
        ("  ```python\n  a\n  ```", "  a"),
        ("`code`", None),
        ("```python\n```", ""),
    ],
)
def test_the_last_closed_fence_is_the_program(text: str, program: str | None) -> None:
    assert last_program(text) == program


@pytest.mark.parametrize("program", ["a = 1", "s = '```'", "x = '''\n```python\n```\n'''", ""])
def test_a_fenced_program_is_found_again(program: str) -> None:
    assert last_program(f"Here:\n{fenced(program)}\nDone.") == program


def test_a_program_with_future_imports_stands_behind_what_the_problem_defines() -> None:
    problem = Problem(question="q", tests=CodeTests(tests=()), preamble="import math\n")

    whole = problem.whole("from __future__ import annotations\nfrom __future__ import (\n    division,\n)\n\ndef f(x: int) -> Later: ...\n")

    compile(whole, "whole.py", "exec")
    assert whole.startswith("from __future__")
    assert "import math" in whole
    assert problem.whole("x = 1") == "import math\n\nx = 1"
