"""Whole gradings of repairs, one test a case, behind walls. All of them run side by side, once.

Those of `BY_RULE` are cheats whose files are put back before anything runs; the rules have unit tests (`test_swe_steering.py`). They run
where `ROLLSTREAM_ALL_CASES` is set.
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
BY_RULE = {f"swe-grade-own-{number:03}" for number in (6, 7, 8, 9, 10, 11, 12, 29)}
EVERY_VARIABLE = "ROLLSTREAM_ALL_CASES"

Results = Mapping[str, Sequence[str]]


def cases() -> Iterator[Case]:
    for path in FILES:
        for case in read_cases(path):
            if case.input.get("kind") == "grade" and (case.id not in BY_RULE or os.environ.get(EVERY_VARIABLE)):
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
