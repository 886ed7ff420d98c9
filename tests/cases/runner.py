"""Running the cases of a file: one after the other, those that are dangerous in a process of their own under limits."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cases.areas import load
from tests.cases.case import Case, Check, Difference, parse_case

ROOT = Path(__file__).resolve().parents[2]
DANGER_WALL_S = 120.0
DANGER_CPU_S = 90
DANGER_MEMORY_BYTES = 4 << 30
"""Address space of each process of a dangerous case: room for what the product itself maps, far below the machine."""
DANGER_FILE_BYTES = 256 << 20
DANGER_PROCESSES = 512
"""More than there are: the kernel counts all processes and threads of the user, those of tests beside this one too."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a case came to."""

    case: Case
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        return not self.differences

    def line(self) -> str:
        """One line for a person: id, what was expected, what came."""
        return f"{self.case.id}: {'; '.join(map(str, self.differences)) or 'passed'}"


async def run_cases(area_name: str, cases: Iterable[Case]) -> list[CaseResult]:
    """All cases through the area, in order."""
    results: list[CaseResult] = []
    async with load(area_name)() as check:
        for case in cases:
            differences = await (_in_limits(area_name, case) if case.danger else _checked(check, case))
            results.append(CaseResult(case, tuple(differences)))
    return results


async def run_one(area_name: str, case: Case) -> list[Difference]:
    """One case, with everything its area opens opened for it alone."""
    return list((await run_cases(area_name, [case]))[0].differences)


async def _checked(check: Check, case: Case) -> list[Difference]:
    """An error of the product is a difference like any other, so that one case cannot stop the rest."""
    try:
        return await check(case)
    except Exception as broken:  # noqa: BLE001 - whatever the product raises is what came instead of the expected value
        return [Difference("no error", "a value", f"{type(broken).__name__}: {broken}")]


async def _in_limits(area_name: str, case: Case) -> list[Difference]:
    """The case in a process of its own: bounded in time, memory, file size and processes, and killed with all it started."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("run.py")),
        *(area_name, "--inside-limits"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(DANGER_WALL_S):
            said, errors = await process.communicate(case.raw.encode())
    except TimeoutError:
        return [Difference("seconds", f"at most {DANGER_WALL_S}", "killed")]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        return [Difference("exit of the limited process", 0, f"{process.returncode}: {errors.decode(errors='replace')[-300:]}")]
    return [Difference(one["what"], one["expected"], one["found"]) for one in json.loads(said)]


def run_inside_limits(area_name: str) -> int:
    """The other side of `_in_limits`: reads a case from standard input, prints its differences."""
    soft_limits = (
        (resource.RLIMIT_CPU, DANGER_CPU_S),
        (resource.RLIMIT_AS, DANGER_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, DANGER_FILE_BYTES),
        (resource.RLIMIT_NPROC, _tasks_of_this_user() + DANGER_PROCESSES),
        (resource.RLIMIT_CORE, 0),
    )
    for limit, value in soft_limits:
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value, hard) if hard == resource.RLIM_INFINITY or value <= hard else (hard, hard))
    case = parse_case(sys.stdin.read())
    harmless = Case(case.id, case.story, case.input, case.expect)
    differences = asyncio.run(run_one(area_name, harmless))
    print(json.dumps([asdict(difference) for difference in differences], default=str))
    return 0


def _tasks_of_this_user() -> int:
    """Its processes and threads; 0 where the system does not list them so."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if folder.stat().st_uid == os.getuid():
                found += len(os.listdir(folder / "task"))
    return found
