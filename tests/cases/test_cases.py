"""The case files, one test a case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.case import Case, read_cases
from tests.cases.runner import run_one

HERE = Path(__file__).parent
FILES = (
    ("math", HERE / "data" / "math.jsonl"),
    ("math", HERE / "math_own.jsonl"),
    ("redis", HERE / "data" / "redis.jsonl"),
    ("dapo", HERE / "data" / "dapo.jsonl"),
    ("dapo", HERE / "data" / "dapo_own.jsonl"),
)
SLOW = {"math-own-099", *(f"redis-{number:03}" for number in (17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 39))}
"""Those that take 4 to 15 seconds: outages and dead workers that are waited out, and an answer that takes algebra to its limits."""


def marks(case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if case.id in SLOW else []


CASES = [pytest.param(area, case, id=case.id, marks=marks(case)) for area, path in FILES for case in read_cases(path)]


@pytest.mark.parametrize(("area", "case"), CASES)
async def test_case(area: str, case: Case) -> None:
    assert [str(difference) for difference in await run_one(area, case)] == []
