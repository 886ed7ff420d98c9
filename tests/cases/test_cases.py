"""The case files, one test a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cases.case import Case, read_cases
from tests.cases.runner import run_one
from tests.contract.sandbox.kinds import KINDS, usable

HERE = Path(__file__).parent
FILES = (
    ("math", HERE / "data" / "math.jsonl"),
    ("math", HERE / "math_own.jsonl"),
    ("redis", HERE / "data" / "redis.jsonl"),
    ("dapo", HERE / "data" / "dapo.jsonl"),
    ("dapo", HERE / "data" / "dapo_own.jsonl"),
    ("tokens", HERE / "data" / "tokens.jsonl"),
    ("tokens", HERE / "data" / "tokens_own.jsonl"),
    ("toolcalls", HERE / "data" / "toolcalls.jsonl"),
    ("toolcalls", HERE / "data" / "toolcalls_own.jsonl"),
    ("shell", HERE / "data" / "shell.jsonl"),
    ("shell", HERE / "data" / "shell_own.jsonl"),
    ("ipython", HERE / "data" / "ipython.jsonl"),
    ("ipython", HERE / "data" / "ipython_own.jsonl"),
)
SLOW = {
    *(f"redis-{number:03}" for number in (17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39)),
    *(f"math-own-{number:03}" for number in (97, 98, 99, 100, 101, 129)),
}
"""Outages and dead workers that are waited out, 3 to 15 seconds each; answers that keep a process busy."""
SLOW_SHELL = {
    *("shell-023", "shell-033", "shell-035", "shell-015", "shell-017"),
    *(f"shell-own-{number:03}" for number in (*range(18, 22), *range(25, 34), 43, 45, 46, 72)),
}
"""Limits, floods and silences that are waited out."""
QUICK_DAPO = {"dapo-001", "dapo-013", "own-dapo-01"}
"""The others of their area take half a second each."""


def is_slow(area: str, case: Case) -> bool:
    needs_qwen = case.input.get("tokenizer") == "qwen"  # its merges are found once a process, in three seconds
    return case.id in SLOW or needs_qwen or area == "ipython" or case.id in SLOW_SHELL or (area == "dapo" and case.id not in QUICK_DAPO)


IN_SANDBOXES = ("shell", "ipython")
"""Areas whose cases run once in each kind of sandbox."""
OF_WALLS = {f"ipy-own-{number:03}" for number in (4, 5, 19, 20, 21, 22, 25, 26, 38, 39, 40, 43, 44)}
"""Those of our own for Python that walls can change: processes, folders, packages. The others run without walls only, to save time."""


def params() -> Iterator[ParameterSet]:
    """A test a case, and a kind of sandbox where it runs in one."""
    for area, path in FILES:
        for case in read_cases(path):
            marks = pytest.mark.slow if is_slow(area, case) else ()
            if area not in IN_SANDBOXES:
                yield pytest.param(area, case, id=case.id, marks=marks)
            for kind in KINDS if area in IN_SANDBOXES else ():
                if path.name == "ipython_own.jsonl" and KINDS[kind].walls and case.id not in OF_WALLS:
                    continue
                there = replace(case, input={**case.input, "sandbox": kind})
                yield pytest.param(area, there, id=f"{case.id}-{kind}", marks=marks if kind == "process" else pytest.mark.slow)


@pytest.mark.parametrize(("area", "case"), list(params()))
async def test_case(area: str, case: Case) -> None:
    if area in IN_SANDBOXES:
        usable(case.input["sandbox"])

    assert [str(difference) for difference in await run_one(area, case)] == []
