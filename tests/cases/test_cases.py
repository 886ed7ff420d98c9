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
CASES = [pytest.param(area, case, id=case.id) for area, path in FILES for case in read_cases(path)]


@pytest.mark.parametrize(("area", "case"), CASES)
async def test_case(area: str, case: Case) -> None:
    assert [str(difference) for difference in await run_one(area, case)] == []
