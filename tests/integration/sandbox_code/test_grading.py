"""The task `code` from a row to a grade, in sandboxes with walls, without a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.messages import Grade, JobSpec, Trajectory
from pipeline.testing.wait import wait_until
from tests.judged import eval_context, spec_of
from workers.graders import GraderError
from workers.handlers.code.fences import fenced
from workers.handlers.code.handler import SAMPLES, CodeHandler, solution_in
from workers.handlers.submission import submitted
from workers.handlers.task_data import load_rows
from workers.sandbox import SandboxOwner, SandboxSpec
from workers.sandbox.service import RemoteSandboxes

NUMBERS = [{"stdin": f"{n}\n", "expected": f"{n}"} for n in range(12)]
ECHO = {"question": "Print the number.", "tests": NUMBERS}
SIDE_BY_SIDE = 3


def walled(row: Mapping[str, object], options: Mapping[str, object] | None = None) -> JobSpec:
    """A job of its own for each call: a job has one sandbox of a kind at a time."""
    spec = spec_of("code", row, options)
    return replace(spec, job=f"{spec.job}-{id(spec)}", template=replace(spec.template, capability="isolated"))


async def graded(code: CodeHandler, sandboxes: RemoteSandboxes, spec: JobSpec, trajectory: Trajectory) -> Grade:
    return await code.evaluate(eval_context(spec, trajectory, sandboxes))


@pytest.mark.slow
async def test_every_sample_scores_with_its_solution_only(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    slots = asyncio.Semaphore(SIDE_BY_SIDE)

    async def rewards(row: Mapping[str, object]) -> tuple[object, float, float]:
        spec = walled(row, {"max_tests": 2})
        gold = code.gold(spec)
        assert gold is not None
        async with slots:
            right = await graded(code, sandboxes, spec, gold)
            return row["id"], right.reward, (await graded(code, sandboxes, spec, code.empty(spec))).reward

    rows = load_rows(SAMPLES[0], code.layouts).rows
    found = await asyncio.gather(*map(rewards, rows))

    assert len(rows) >= 20
    assert found == [(row["id"], 1.0, 0.0) for row in rows]


async def test_quick_tests_share_a_sandbox(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    grade = await graded(code, sandboxes, walled(ECHO), submitted(fenced("print(input())")))

    assert (grade.reward, grade.details["accepted"], grade.details["sandboxes"]) == (1.0, 12, 1)


async def test_a_program_that_leaves_something_costs_a_sandbox_each_time(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    leaves = "import os\nprint(input() if not os.path.exists('/tmp/seen') else 'seen')\nopen('/tmp/seen', 'w').close()"

    grade = await graded(code, sandboxes, walled(ECHO, {"max_tests": 2}), submitted(fenced(leaves)))

    assert (grade.reward, grade.details["sandboxes"]) == (1.0, 2)


async def test_with_an_image_each_round_has_a_sandbox(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    """An image is all writable: what a program changed in its Python cannot be looked for in time."""
    tamper = "import os\nprint(input())\nopen(os.__file__, 'a').write('\\nraise SystemExit(9)\\n')"

    grade = await graded(code, sandboxes, walled(ECHO, {"image": "base", "max_tests": 2}), submitted(fenced(tamper)))

    assert (grade.reward, grade.details["sandboxes"]) == (1.0, 2)


@pytest.mark.parametrize(("reward", "expected"), [("all", 0.0), ("fraction", 0.75)])
async def test_the_reward_is_all_or_a_fraction(code: CodeHandler, sandboxes: RemoteSandboxes, reward: str, expected: float) -> None:
    spec = walled(ECHO, {"reward": reward, "max_tests": 4})

    grade = await graded(code, sandboxes, spec, submitted(fenced("n = int(input())\nprint(n if n != 2 else 7)")))

    assert (grade.reward, grade.components["fraction"]) == (expected, 0.75)
    assert (grade.details["verdict"], grade.details["first_failed"]) == ("wrong_answer", 2)


async def test_a_program_without_an_end_costs_one_limit(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    grade = await graded(code, sandboxes, walled(ECHO, {"time_s": 0.3}), submitted(fenced("import time\ntime.sleep(600)")))

    assert (grade.reward, grade.details["verdicts"]) == (0.0, ["time_limit", *["not_run"] * 11])


async def test_a_file_that_is_no_program_is_no_fault_of_the_worker(sandboxes: RemoteSandboxes) -> None:
    async with await sandboxes.start(SandboxSpec(), SandboxOwner(job_id="agent", attempt=1, boot_id="boot")) as sandbox:
        await sandbox.write_file("solution.py", b"print(1)  # \xff")
        await sandbox.exec("mkdir folder; mkfifo pipe; ln -s /etc/passwd-none link; head -c 300000 /dev/zero >large", timeout_s=10)

        found = {name: await solution_in(sandbox, name) for name in ("solution.py", "folder", "pipe", "link", "large", "none")}

    assert found.pop("solution.py") == {"solution": "print(1)  # \ufffd"}
    assert all(list(missing) == ["solution_missing"] for missing in found.values()), found


async def test_a_solution_in_a_file_is_what_the_agent_left(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    spec = walled(ECHO, {"solution_file": "solution.py", "max_tests": 1})

    in_file = await graded(code, sandboxes, spec, submitted("Done.", {"solution": "print(input())"}))
    missing = await graded(code, sandboxes, spec, submitted(fenced("print(input())")))

    assert (in_file.reward, missing.reward, missing.details["verdict"]) == (1.0, 0.0, "no_program")


HUMAN_EVAL = {
    "task_id": "T/1",
    "prompt": "def shifted(x):\n    return x + 1\n\n\ndef f(x):\n    '''Twice the number after x.'''\n",
    "canonical_solution": "    return 2 * shifted(x)\n",
    "test": "def check(candidate):\n    for n in range(-3, 4):\n        assert candidate(n) == 2 * shifted(n)",
    "entry_point": "f",
}
MBPP = {
    "task_id": 2,
    "text": "Write pair.",
    "code": "def pair(x):\n    return (x, {x})",
    "test_list": ["assert pair(1) == (1, {1})", "assert pair('a')[0] == 'a'"],
}


@pytest.mark.parametrize(
    ("row", "wrong"),
    [(HUMAN_EVAL, "def f(x):\n    return 2 * x"), (MBPP, "def pair(x):\n    return [x, {x}]"), (MBPP, "import sys\nsys.exit(0)")],
)
async def test_asserts_of_public_sets_are_judged(code: CodeHandler, sandboxes: RemoteSandboxes, row: dict[str, object], wrong: str) -> None:
    gold = code.gold(walled(row))
    assert gold is not None

    right = await graded(code, sandboxes, walled(row), gold)
    other = await graded(code, sandboxes, walled(row), submitted(fenced(wrong)))

    assert (right.reward, other.reward) == (1.0, 0.0), (right.details, other.details)
    assert right.details["sandboxes"] in (2, 3)  # the questions, the program, the judgement: all tests together
    assert other.details["sandboxes"] in (1, 2)  # the questions are known by now


@pytest.mark.parametrize("source", ["assert True", "f(lambda x: x)"])
async def test_tests_that_cannot_judge_are_no_ones_zero(code: CodeHandler, sandboxes: RemoteSandboxes, source: str) -> None:
    spec = walled({"question": "?", "tests": [{"source": source}]})

    with pytest.raises(GraderError):
        await graded(code, sandboxes, spec, submitted(fenced("def f(x): return x")))


async def test_a_cancelled_grade_leaves_nothing(code: CodeHandler, sandboxes: RemoteSandboxes) -> None:
    """The fixture looks for what is left."""
    grading = asyncio.create_task(graded(code, sandboxes, walled(ECHO), submitted(fenced("import time\ntime.sleep(600)"))))

    async def is_up() -> bool:
        return bool(await sandboxes.owned())

    await wait_until(is_up, "the sandbox of the grade")

    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading


async def test_no_answer_costs_no_sandbox(code: CodeHandler) -> None:
    long = "x = 1\n" * 100_000

    grades = [await code.evaluate(eval_context(walled(ECHO), submitted(text))) for text in ("", "print(1)", fenced(""), fenced(long))]

    assert [(grade.reward, grade.details["verdict"]) for grade in grades] == [(0.0, "no_program")] * 3 + [(0.0, "program_too_long")]
