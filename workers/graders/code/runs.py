"""Runs programs in a sandbox that nothing of an earlier program is in.

Invariants
    - A run begins in a sandbox in which no earlier run left a process or, outside its own folder, a changed file. The runner inside looks
      for that; where it found something, or did not come to say, the sandbox ends and a new one takes its place. A sandbox with an image
      has too many files to look at: there each round of runs has a sandbox of its own.
    - Runs of one round are side by side and can touch each other. What was touched is run again alone, so no run fails of another.
    - What knows expected values (`judge.py`) runs in a sandbox in which no program under judgement ever ran.
    - What a program did to its runner or its sandbox is its failed test; what happened before it began is the grader's failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from workers.graders.code.problem import MOST_FILES, RunLimits
from workers.graders.code.programs import HASH_SEED, command, python_of_node
from workers.graders.code.report import READY, Report, read_report, verdict_of_notices
from workers.graders.code.verdicts import TestVerdict, Verdict
from workers.graders.errors import GraderError
from workers.sandbox.base import Sandbox
from workers.sandbox.errors import ExecTimeout, SandboxError, SandboxGone, SandboxTaken
from workers.sandbox.results import ExecResult

GRADER = "code"
RUNNER_S = 4.0
"""What the runner may take beside its program: to start on a busy machine, to end what the program left."""
WALL_PER_OWN = 5.0
"""By the clock a program may take so many times as long as its limit when it waits for a core; then the machine is too busy to judge it."""
HEAD_BYTES = 64 * 1024
"""Of the report, beside the three texts in it."""
RUNNER = ("leftovers", "watch", "runner")
FILES = {
    "stdio": RUNNER,
    "call": ("plain", *RUNNER, "calls"),
    "batch": ("plain", *RUNNER, "calls", "batch"),
    "judge": ("plain", *RUNNER, "calls", "arrays", "judge"),
}
"""What runs a program of each kind."""
JUDGE = "judge"
WITHOUT_WALLS = "process"
"""The backend whose sandboxes share files and processes with the node: there nobody looks at what is left outside of a test's folder."""
EMPTY_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # inside the sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program."""

    kind: str
    """What the runner does with it: a key of `FILES`."""
    program: bytes
    given: bytes
    """Standard input, or the arguments."""
    entry: str
    limits: RunLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of it."""

    report: Report | None
    """None: the program kept its runner from saying, or the sandbox ended."""
    notices: tuple[str, ...]
    why: str
    """For people, when there is no report."""
    timed_out: bool = False
    gone: bool = False
    """The sandbox ended: when it does so twice, the program ended it."""


class CleanSandbox:
    """A sandbox for one program after another; an async context manager that ends the last one.

    Args:
        start: makes a new one; asked for again only when the one before has ended.
        has_image: whether there are too many files to look at.
    """

    def __init__(self, start: Callable[[], Awaitable[Sandbox]], *, has_image: bool) -> None:
        self._start = start
        self._has_image = has_image
        self._sandbox: Sandbox | None = None
        self._is_clean = True
        self._is_used = False
        self._rounds = 0
        self.made = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    async def run_round(self, runs: Sequence[Run]) -> list[Ran]:
        """Runs side by side; those that did not come to a report are run again, each alone.

        Raises:
            GraderError: a runner did not come up.
            SandboxError: no sandbox could be had, or the node had no time for a program.
        """
        ran = await self._round(runs)
        if len(runs) > 1:
            for number, one in enumerate(ran):
                if one is None or one.report is None:
                    ran[number] = (await self.run_round([runs[number]]))[0]
        elif ran[0] is None or ran[0].gone:
            ran = await self._round(runs)
        done = [one for one in ran if one is not None]
        if len(done) != len(runs):
            raise GraderError("a program's runner did not begin, twice", grader=GRADER)
        return done

    async def run_apart(self, runs: Sequence[Run]) -> list[Ran]:
        """Runs programs of ours in a sandbox in which nothing under judgement has run.

        Raises:
            As `run_round`.
        """
        if self._is_used:
            await self._end()
        ran = await self.run_round(runs)
        self._is_used = False
        return ran

    async def _round(self, runs: Sequence[Run]) -> list[Ran | None]:
        """None for a run that did not begin."""
        sandbox = await self._clean()
        self._rounds += 1  # names of an earlier round are nobody's
        self._is_clean = False  # until it is known that it is
        self._is_used = True
        tries = [self._run(sandbox, run, number, len(runs)) for number, run in enumerate(runs)]
        ran: list[Ran | None] = []
        for one in await asyncio.gather(*tries, return_exceptions=True):  # all are over before the first error is told
            if isinstance(one, BaseException):
                raise one
            ran.append(one)
        self._is_clean = not self._has_image and all(one is not None and one.report is not None and not one.report.left for one in ran)
        return ran

    async def _run(self, sandbox: Sandbox, run: Run, number: int, at_once: int) -> Ran | None:
        cap_s = WALL_PER_OWN * run.limits.time_s + 2
        walls = sandbox.handle.backend != WITHOUT_WALLS
        places = (*(f"empty:{place}" for place in (*EMPTY_PLACES, sandbox.workdir)), "old:/") if walls and not self._has_image else ()
        order = {
            "kind": run.kind,
            "program": len(run.program),
            "entry": run.entry or "-",
            "round": f"test-{self._rounds}-",
            "folder": f"test-{self._rounds}-{number}",
            "time_s": run.limits.time_s,
            "cap_s": cap_s,
            "memory_bytes": run.limits.memory_mb * 1024**2,
            "output_bytes": run.limits.output_bytes,
            "processes": run.limits.processes * at_once,
            "files": MOST_FILES * at_once,
            "disk_bytes": run.limits.disk_bytes * at_once,
            "counted": " ".join((sandbox.workdir if places else "folder", *(EMPTY_PLACES if walls else ()))),
            "walls": "yes" if walls else "no",
            "places": " ".join(places),
        }
        head = "\n".join(f"{name} {value}" for name, value in order.items()).encode()
        python, *arguments = command(*FILES[run.kind], seeded=run.kind == JUDGE)
        if not walls:
            python = await asyncio.to_thread(python_of_node)
        try:
            result = await sandbox.exec(
                [python, *arguments],
                stdin=head + b"\n\n" + run.program + run.given,
                env=HASH_SEED if run.kind == JUDGE else None,
                timeout_s=cap_s + RUNNER_S,
                max_output_bytes=3 * run.limits.output_bytes + HEAD_BYTES,
            )
        except SandboxTaken:
            raise
        except SandboxGone as gone:
            return Ran(report=None, notices=(), why=f"the sandbox ended: {gone.why}", gone=True)
        except ExecTimeout as stuck:
            return Ran(report=None, notices=(), why=str(stuck), timed_out=True)
        return _ran(result)

    async def _clean(self) -> Sandbox:
        if self._sandbox is not None and not self._is_clean:
            await self._end()
        if self._sandbox is None:
            self._sandbox = await self._start()
            self._is_used = False
            self.made += 1
        return self._sandbox

    async def _end(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill()


def _ran(result: ExecResult) -> Ran | None:
    """What a command came to.

    Raises:
        GraderError: there is no Python in the sandbox.
        SandboxError: the node had no time for the program.
    """
    if result.returncode in (126, 127) and not result.stdout:
        raise GraderError(f"python3 cannot be run in the sandbox: {result.stderr_text.strip()[-300:]}", grader=GRADER)
    if not result.stdout.startswith(READY):
        return None
    report = None if result.truncated_bytes or result.timed_out or result.returncode != 0 else read_report(result.stdout)
    if report is not None and report.ended == "cap":
        raise SandboxError(f"the node is too busy to judge a program: it could run for {report.own_s:g} s and was given up")
    how = "it did not end" if result.timed_out else f"exit code {result.returncode}"
    why = "" if report is not None else f"the program ended or stopped what ran it ({how}): {result.stderr_text.strip()[-300:]}"
    return Ran(report=report, notices=result.notices, why=why, timed_out=result.timed_out)


def verdict_without(ran: Ran) -> TestVerdict:
    """The verdict on a run that came to no report: the program's doing."""
    why = "; ".join((*ran.notices, ran.why))
    if ran.timed_out:
        return TestVerdict(verdict=Verdict.TIME_LIMIT, why=why)
    return TestVerdict(verdict=verdict_of_notices(ran.notices) or Verdict.RUNTIME_ERROR, why=why)
