"""Cases of grading mathematics, through `MathGrader`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cases.case import Case, Check, Difference, shown, text_of
from workers.graders import GraderError, MathGrader


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """One grader for all cases; its processes start with the first case that needs one."""
    async with MathGrader() as grader:

        async def check(case: Case) -> list[Difference]:
            return await _check(grader, case)

        yield check


async def _check(grader: MathGrader, case: Case) -> list[Difference]:
    started = time.perf_counter()
    try:
        verdict = await grader.grade(text_of(case.input, "response"), text_of(case.input, "gold"))
    except GraderError as broken:
        return [Difference("verdict", case.expect.get("correct"), f"GraderError: {broken}")]
    took_s = time.perf_counter() - started
    found: list[Difference] = []
    if verdict.correct is not case.expect["correct"]:
        judged = f"correct ({verdict.kind}, {verdict.reason}, read {shown(verdict.extracted or '', 80)!r})"
        found.append(Difference(judged, case.expect["correct"], verdict.correct))
    if took_s > float(case.expect.get("max_s", 10)):
        found.append(Difference("seconds", f"at most {case.expect['max_s']}", round(took_s, 2)))
    unwanted = case.expect.get("no_file")
    if unwanted is not None:
        found.extend(Difference("file", "none", str(place)) for place in (Path.cwd() / unwanted, Path("/") / unwanted) if place.exists())
    return found
