"""The shells of others, each in a process and an environment of its own, asked in turn with ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.rivals import HOW_TO_GET, Rivals, openhands, swerex
from ops.child_processes import log_tail

PROGRAMS = Path(__file__).parent / "rival_programs"
START_S = 120.0
"""Most of it imports of theirs."""
CALL_S = 60.0


class RivalFailed(Exception):
    """A rival does not answer; says what it said."""


@dataclass(slots=True, kw_only=True)
class RivalShell:
    """One that is asked by lines (`rival_programs/asked_calls.py`), and what it has answered."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    calls_ms: list[float] = field(default_factory=list)
    failed: int = 0

    async def ask(self, calls: int) -> None:
        """Runs so many calls.

        Raises:
            RivalFailed
        """
        assert self.process.stdin is not None
        self.process.stdin.write(b"%d\n" % calls)
        answer = await self.answer(START_S + calls * CALL_S)
        self.calls_ms += answer["calls_ms"]
        self.failed += answer["failed"]

    async def answer(self, timeout_s: float) -> dict[str, Any]:
        """Its next line.

        Raises:
            RivalFailed
        """
        assert self.process.stdout is not None
        line = b""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            pass
        if not line:
            raise RivalFailed(f"{self.name}: no answer within {timeout_s:g} s, or it has ended: {log_tail(self.log)[-300:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def known_rivals() -> dict[str, tuple[Rivals, tuple[str, ...]]]:
    """Which there are, by name: the environment, and the program with its arguments."""
    terminals, sessions = openhands(), swerex()
    return {
        "openhands_tmux": (terminals, ("openhands_terminal.py", "tmux")),
        "openhands_pty": (terminals, ("openhands_terminal.py", "subprocess")),
        "swerex": (sessions, ("swerex_session.py",)),
    }


@asynccontextmanager
async def open_rivals(folder: Path, say: Callable[[str], None]) -> AsyncIterator[tuple[list[RivalShell], list[str]]]:
    """Starts those that are installed; yields them, and of each other one why it is left out.

    Args:
        folder: for what they say.
    """
    async with AsyncExitStack() as stack:
        shells: list[RivalShell] = []
        left_out: list[str] = []
        for name, (environment, program) in known_rivals().items():
            if not environment.is_ready():
                left_out.append(f"{name}: not in {environment.folder} ({HOW_TO_GET})")
                continue
            say(f"starting {name}")
            try:
                shells.append(await stack.enter_async_context(running(name, environment.python, program, folder)))
            except RivalFailed as error:
                left_out.append(str(error))
        yield shells, left_out


@asynccontextmanager
async def running(name: str, python: Path, program: tuple[str, ...], folder: Path) -> AsyncIterator[RivalShell]:
    """One of them, from its first answer on; it ends with the block.

    Raises:
        RivalFailed: it does not come up.
    """
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            python, *program, cwd=PROGRAMS, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=out
        )
    rival = RivalShell(name=name, process=process, log=log)
    try:
        await rival.answer(START_S)
        yield rival
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends with that
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
