"""The case files of programs, one test a file, behind walls: its cases run side by side, as most of them wait for a limit.

A case that is dangerous runs in a process of its own under limits, as everywhere. Of our own cases those run whose outcome hangs on the
sandbox. The rest, which are about comparing, run where `ROLLSTREAM_TEST_ALL_CASES` is set; the rules themselves are tried by
`tests/unit/graders/test_code_compare.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.areas.code import area
from tests.cases.busy_machine import BUSY, times_waiting
from tests.cases.case import Case, Difference, read_cases
from tests.cases.runner import run_one
from tests.contract.sandbox.kinds import usable

DATA = Path(__file__).parent / "data"
FILES = (DATA / "code.jsonl", DATA / "code_own.jsonl", DATA / "code_cheats.jsonl")
KIND = "bubblewrap"
SIDE_BY_SIDE = 4
OF_THE_SANDBOX = frozenset(
    f"code-own-{number:03}"
    for number in (
        23,
        25,
        31,
        34,
        35,
        36,
        40,
        42,
        44,
        47,
        49,
        *range(52, 58),
        61,
        68,
        71,
        75,
        79,
        80,
        89,
        92,
        93,
        94,
        95,
        97,
        *range(99, 105),
    )
)
EVERY_VARIABLE = "ROLLSTREAM_TEST_ALL_CASES"
TOO_BUSY = "too busy to judge"
TRIES = 3
WITHOUT_WALLS = ("code-001", "code-027", "code-045")
"""Run in the backend `process` too: the runner there is the same, and what it finds around it is not."""


def cases(path: Path) -> Iterator[Case]:
    for case in read_cases(path):
        if path.name == "code_own.jsonl" and case.id not in OF_THE_SANDBOX and not os.environ.get(EVERY_VARIABLE):
            continue
        yield replace(case, input={**case.input, "sandbox": KIND})
        if case.id in WITHOUT_WALLS:
            yield replace(case, input={**case.input, "sandbox": "process"})


def _name(case: Case) -> str:
    return f"{case.id}, {case.input['sandbox']}"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_cases(path: Path) -> None:
    usable(KIND)
    slots = asyncio.Semaphore(SIDE_BY_SIDE)
    different: dict[str, Sequence[str]] = {}
    async with area() as check:

        async def run(case: Case) -> None:
            async with slots:
                try:
                    raw = case.raw.replace('"input": {', f'"input": {{"sandbox": "{case.input["sandbox"]}", ', 1)
                    found = await (run_one("code", replace(case, raw=raw)) if case.danger else check(case))
                except Exception as broken:  # noqa: BLE001  # whatever the product raises is what came instead
                    found = [Difference("no error", "a verdict", f"{type(broken).__name__}: {broken}")]
                if found:
                    different[_name(case)] = [str(one) for one in found]

        await asyncio.gather(*map(run, cases(path)))
        for case in cases(path):  # a program that had no time of a core is no one's verdict: it is run again, as a job would be
            for _ in range(TRIES):
                if any(TOO_BUSY in one for one in different.get(_name(case), ())):
                    del different[_name(case)]
                    await run(case)
    if times_waiting() >= BUSY:  # and on a machine without time for a program, none is the right answer
        different = {name: found for name, found in different.items() if not any(TOO_BUSY in one for one in found)}
    assert different == {}
