"""The case files, one test a case; what runs in sandboxes has its own (`test_sandbox_cases.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cases.areas.swe import WITHOUT_SANDBOX
from tests.cases.case import Case, read_cases
from tests.cases.runner import run_one

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
    ("swe", HERE / "data" / "swe.jsonl"),
    ("swe", HERE / "data" / "swe_own.jsonl"),
)
SLOW = {
    *(f"redis-{number:03}" for number in (17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39)),
    *(f"math-own-{number:03}" for number in (97, 98, 99, 100, 101, 129)),
}
"""Outages and dead workers that are waited out, 3 to 15 seconds each; answers that keep a process busy."""
QUICK_DAPO = {"dapo-001", "dapo-013", "own-dapo-01"}
"""The others of their area take half a second each."""


def is_slow(area: str, case: Case) -> bool:
    needs_qwen = case.input.get("tokenizer") == "qwen"  # its merges are found once a process, in three seconds
    return case.id in SLOW or needs_qwen or (area == "dapo" and case.id not in QUICK_DAPO)


def params() -> Iterator[ParameterSet]:
    for area, path in FILES:
        for case in read_cases(path):
            if area == "swe" and case.input["kind"] not in WITHOUT_SANDBOX:
                continue
            yield pytest.param(area, case, id=case.id, marks=pytest.mark.slow if is_slow(area, case) else ())


@pytest.mark.parametrize(("area", "case"), list(params()))
async def test_case(area: str, case: Case) -> None:
    assert [str(difference) for difference in await run_one(area, case)] == []
