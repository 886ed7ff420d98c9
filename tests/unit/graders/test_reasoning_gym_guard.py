"""What scoring puzzles reads of an answer, and what it refuses, without the package and without processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workers.graders.reasoning_gym.corrections import scored
from workers.graders.reasoning_gym.guard import NotTaken, check_formula, literal
from workers.graders.reasoning_gym.puzzle import digest_of, reference_of
from workers.graders.tagged_answer import tagged_answer

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[[1, 2], [3, -4]]", [[1, 2], [3, -4]]),
        ("('A', \"B\")", ("A", "B")),
        ("{'a': {1}}", {"a": {1}}),
        ("0x1f ^ (3 << 2)", 19),
        ("-2**3", -8),
    ],
)
def test_literals_and_arithmetic_are_read(text: str, value: object) -> None:
    assert literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "print(1)",
        "[c for c in 'ab']",
        "(lambda: 1)()",
        "x",
        "'a'.upper()",
        "f'{1}'",
        "{**{}}",
        "'ab' * 10**9",
        "[1] * 10**9",
    ],
)
def test_what_would_have_to_be_run_is_not(text: str) -> None:
    with pytest.raises(NotTaken):
        literal(text)


@pytest.mark.parametrize("text", ["(25 + 3) * 4 - 7/2", "x**2*sin(3*x)/2 + C", "1.5e-3*x + log(x_1)", "theta + 1", "5!"])
def test_formulas_are_taken(text: str) -> None:
    check_formula(text, {"theta": object()})


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')",
        "exec(1)",
        "x.func",
        "(1).real",
        "1 .real",
        "2.real",
        "x1.y",
        "open(1)",
        "x[0]",
        "lambda: 1",
        "ｅｘｅｃ(1)",  # Python reads it as exec
        "Integral(x, x)",
        "x; y",
        "1" * 20_001,
    ],
)
def test_what_is_more_than_a_formula_is_not_taken(text: str) -> None:
    with pytest.raises(NotTaken):
        check_formula(text)


def test_scorers_that_are_wrong_are_set_right() -> None:
    def everything_is_right(answer: str, entry: object) -> float:
        return 1.0

    def same_board(answer: str, entry: dict[str, dict[str, object]]) -> float:
        return 1.0 if entry["metadata"]["output"] == ((1, 2),) else 0.05

    assert [scored("game_of_life_halting", everything_is_right, said, {"answer": "True"}) for said in ("true", "False", "x")] == [
        1.0,
        0.0,
        0.0,
    ]
    assert [scored("complex_arithmetic", everything_is_right, said, {}) for said in ("1 + 2i", "NaN")] == [1.0, 0.0]
    assert scored("rearc", same_board, "1 2", {"metadata": {"output": [[1, 2]]}}) == 1.0


def test_references_are_where_the_package_keeps_them() -> None:
    assert reference_of({"answer": "4", "metadata": {"example_answer": "5"}}) == "4"
    assert reference_of({"answer": None, "metadata": {"possible_answer": {"0": 1}}}) == '{"0": 1}'
    assert reference_of({"answer": None, "metadata": {}}) is None


def test_the_digest_is_that_of_the_content() -> None:
    assert digest_of({"a": 1, "b": (1, 2)}) == digest_of({"b": [1, 2], "a": 1}) != digest_of({"a": 1, "b": [2, 1]})


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so <answer> 4 </answer>", "4"),
        ("<answer>3</answer>, no: <answer>4\n5</answer> done", "4\n5"),
        (r"\boxed{3} <answer>4</answer>", "4"),
        ("<answer>3</answer> wait <answer>4", None),  # cut off while it changed its mind
        (r"it is \boxed{ 7 }", "7"),
        (r"it is \boxed{7} or \boxed{8", None),
        ("  1 2\n3 4 ", "1 2\n3 4"),
        ("<answer> </answer>", None),
        ("", None),
    ],
)
def test_the_answer_is_in_the_last_tags_else_in_the_last_box_else_everything(response: str, answer: str | None) -> None:
    assert tagged_answer(response) == answer


def test_what_is_left_out_can_be_imported_and_not_used() -> None:
    """As a library does that draws pictures nobody asks for."""
    program = (
        "from workers.graders.reasoning_gym.left_out import leave_out\n"
        "leave_out()\n"
        "from mpl_toolkits.mplot3d import Axes3D\n"
        "import matplotlib.pyplot as plt\n"
        "try:\n    plt.figure()\n"
        "except ImportError as error:\n    print(error)\n"
    )

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert told.stdout == "matplotlib.pyplot.figure is not here: install matplotlib\n"
