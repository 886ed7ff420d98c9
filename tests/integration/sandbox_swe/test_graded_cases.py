"""Whole gradings of repairs, one test a case, behind walls.

Of our own those of `ALWAYS`, which differ in kind; the others repeat a kind, or are undone by rules that have unit tests
(`test_swe_steering.py`), and run where `ROLLSTREAM_TEST_ALL_CASES` is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.areas.swe_grade import area
from tests.cases.case import Case, read_cases
from tests.contract.sandbox.kinds import usable

DATA = Path(__file__).parents[2] / "cases/data"
FILES = (DATA / "swe.jsonl", DATA / "swe_grade_own.jsonl")
KIND = "bubblewrap"
ALWAYS = {f"swe-grade-own-{number:03}" for number in (2, 14, 22, 24, 30, 31, 65, 66, 68, 74, 77, 79, 81)}
EVERY_VARIABLE = "ROLLSTREAM_TEST_ALL_CASES"


def cases() -> Iterator[Case]:
    for path in FILES:
        for case in read_cases(path):
            is_due = path.name == "swe.jsonl" or case.id in ALWAYS or os.environ.get(EVERY_VARIABLE)
            if case.input.get("kind") == "grade" and is_due:
                yield replace(case, input={**case.input, "sandbox": KIND})


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
async def test_case(case: Case) -> None:
    usable(KIND)

    async with area() as check:
        assert [str(one) for one in await check(case)] == []
