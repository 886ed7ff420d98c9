"""Whole gradings of repairs, one test a case, behind walls. All of them run side by side, once.

Of our own those of `ALWAYS`, which differ in kind; the others repeat a kind, or are undone by rules that have unit tests
(`test_swe_steering.py`), and run where `ROLLSTREAM_TEST_ALL_CASES` is set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.areas.swe_grade import area
from tests.cases.case import Case, Difference, read_cases
from tests.contract.sandbox.kinds import usable

DATA = Path(__file__).parents[2] / "cases/data"
FILES = (DATA / "swe.jsonl", DATA / "swe_grade_own.jsonl")
KIND = "bubblewrap"
SIDE_BY_SIDE = 3
ALWAYS = {f"swe-grade-own-{number:03}" for number in (2, 3, 5, 14, 16, 21, 22, 24, 30, 31)}
EVERY_VARIABLE = "ROLLSTREAM_TEST_ALL_CASES"

Results = Mapping[str, Sequence[str]]


def cases() -> Iterator[Case]:
    for path in FILES:
        for case in read_cases(path):
            is_due = path.name == "swe.jsonl" or case.id in ALWAYS or os.environ.get(EVERY_VARIABLE)
            if case.input.get("kind") == "grade" and is_due:
                yield replace(case, input={**case.input, "sandbox": KIND})


@pytest.fixture(scope="module")
def results() -> Results:
    """What each case came to."""
    usable(KIND)
    return asyncio.run(run_all())


async def run_all() -> Results:
    slots = asyncio.Semaphore(SIDE_BY_SIDE)
    found: dict[str, Sequence[str]] = {}
    async with area() as check:

        async def run(case: Case) -> None:
            async with slots:
                try:
                    different = await check(case)
                except Exception as broken:  # noqa: BLE001  # whatever the product raises is what came instead
                    different = [Difference("no error", "a verdict", f"{type(broken).__name__}: {broken}")]
                found[case.id] = [str(one) for one in different]

        await asyncio.gather(*map(run, cases()))
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_case(case: Case, results: Results) -> None:
    assert results[case.id] == []
