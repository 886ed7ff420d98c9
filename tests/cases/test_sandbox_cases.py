"""The case files of what runs in sandboxes, one test a case and kind of sandbox."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from _pytest.mark import ParameterSet

from tests.cases.areas import ipython, shell
from tests.cases.busy_machine import times_slower, with_more_time
from tests.cases.case import Case, read_cases
from tests.cases.runner import run_cases
from tests.contract.sandbox.kinds import LOCAL_KINDS, usable
from tests.contract.sandbox.rooms import Rooms

CHECKS = {"shell": shell.check_in, "ipython": ipython.check_in}
DATA = Path(__file__).parent / "data"
FILES = (
    ("shell", DATA / "shell.jsonl"),
    ("shell", DATA / "shell_own.jsonl"),
    ("ipython", DATA / "ipython.jsonl"),
    ("ipython", DATA / "ipython_own.jsonl"),
)
SLOW_SHELL = {
    *("shell-023", "shell-033", "shell-035", "shell-015", "shell-017"),
    *(f"shell-own-{number:03}" for number in (*range(18, 22), *range(25, 34), 43, 45, 46, 72)),
}
"""Limits, floods and silences that are waited out."""
OF_WALLS = {f"ipy-own-{number:03}" for number in (4, 5, 19, 20, 21, 22, 25, 26, 38, 39, 40, 43, 44)}
"""Those of our own for Python that walls can change: processes, folders, packages. The others run without walls only, to save time."""


def params() -> Iterator[ParameterSet]:
    for area, path in FILES:
        for case in read_cases(path):
            for kind in LOCAL_KINDS:
                if path.name == "ipython_own.jsonl" and kind != "process" and case.id not in OF_WALLS:
                    continue
                there = replace(case, input={**case.input, "sandbox": kind})
                is_slow = kind != "process" or area == "ipython" or case.id in SLOW_SHELL
                yield pytest.param(area, there, id=f"{case.id}-{kind}", marks=pytest.mark.slow if is_slow else ())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rooms() -> AsyncIterator[Rooms]:
    async with Rooms() as rooms:
        yield rooms


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("area", "case"), list(params()))
async def test_case(area: str, case: Case, rooms: Rooms) -> None:
    """In a sandbox that those before have left, emptied."""
    name = case.input["sandbox"]
    room = await rooms.enter(name, usable(name))

    found = await CHECKS[area](case, room.sandbox, room.session)
    if found and (times := times_slower()) > 1:
        await room.close()
        room = await rooms.enter(name, usable(name))
        found = await CHECKS[area](with_more_time(case, times), room.sandbox, room.session)

    assert [str(difference) for difference in found] == []

    await rooms.leave(name, room)


SWE_RUNS = (("swe.jsonl", "process"), ("swe.jsonl", "bubblewrap"), ("swe_own.jsonl", "process"))
"""Patches are git's work and the same behind walls, where users, folders for scratch and limits differ: one file shows that."""
SWE_OFTEN = {
    *(f"swe-own-extract-{number:03}" for number in (2, 4, 6, 7, 8, 9, 13, 16, 18, 23, 24)),
    *(f"swe-own-patch-{number:03}" for number in (8, 12, 19, 20, 21, 24, 26, 36, 40, 45)),
}
"""Of our own those that are run each time, one a way of failing; the others where `EVERY_VARIABLE` is set."""
EVERY_VARIABLE = "ROLLSTREAM_TEST_ALL_CASES"
SWE_TOGETHER = 11
"""Cases that share a sandbox, each in a folder of its own: starting one takes longer than most of them."""


def is_run(case: Case) -> bool:
    is_own = case.id.startswith("swe-own-") and case.input["kind"] != "history"
    return not is_own or case.id in SWE_OFTEN or EVERY_VARIABLE in os.environ


def swe_params() -> Iterator[ParameterSet]:
    for name, sandbox in SWE_RUNS:
        for kind in ("apply_patch", "extract_patch", "history"):
            cases = [
                replace(case, input={**case.input, "sandbox": sandbox})
                for case in read_cases(DATA / name)
                if case.input["kind"] == kind and is_run(case)
            ]
            for start in range(0, len(cases), SWE_TOGETHER):
                some = cases[start : start + SWE_TOGETHER]
                yield pytest.param(sandbox, some, id=f"{some[0].id}-{sandbox}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("sandbox", "cases"), list(swe_params()))
async def test_swe_cases(sandbox: str, cases: list[Case]) -> None:
    usable(sandbox)

    results = await run_cases("swe", cases)

    assert [result.line() for result in results if not result.passed] == []
