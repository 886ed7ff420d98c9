"""A node of real processes, to be killed at chosen moments: its service, and workers with a sandbox each (`crew_program.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline.testing.wait import WaitedTooLong, wait_until
from tests.contract.sandbox.kinds import KINDS, program_of
from tests.sandbox_leftovers import Leftovers
from workers.sandbox.local.folder import SANDBOX_ID
from workers.sandbox.service import RemoteSandboxes

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
JANITOR_S = 0.5
"""As in `node_program.py`."""
LEFT_S = JANITOR_S + 5.0
"""Issue and promise 8: five seconds after the janitor's next round."""
MOMENTS: Mapping[str, float] = {
    "connects": 0.02,
    "starts": 0.25,
    "fills": 0.05,
    "parks": 0.05,
    "attaches": 0.25,
    "runs": 0.02,
    "stops": 0.05,
}
"""Of a worker's life, with how long after each the kill may come (seconds): as long as what comes then may take."""


@dataclass(slots=True)
class Worker:
    """One of the crew."""

    word: str
    pid: int

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self.pid, number)


class Program:
    """One of our processes, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Program:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / script), *arguments),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
        )
        return cls(process)

    async def says(self, start: str) -> str:
        """Its next line that begins so, without that; empty at its end."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(start):
                    return line.removeprefix(start).strip()
        return ""

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Node:
    """A node of processes.

    Args:
        kind: of its sandboxes.
        image: what they are made of; empty = the node's own files.
    """

    def __init__(self, kind: str, place: Path, image: str = "") -> None:
        self.kind = kind
        self.place = place
        self.image = image
        self.scratch = place / "s" / "sandboxes"
        self.leftovers = Leftovers(place)
        self.chance = random.Random(os.urandom(8))
        self._service: Program | None = None
        self._crew: Program | None = None

    @property
    def service(self) -> asyncio.subprocess.Process:
        assert self._service is not None
        return self._service.process

    async def serve(self, **environment: str) -> None:
        """Starts a service, where an earlier one has ended."""
        self._service = await Program.start("node_program.py", self.kind, str(self.place), *program_of(self.kind), environment=environment)
        self.leftovers.is_own(self.service.pid)
        assert await self._service.says("ready") == "", "the service says what it should not"
        assert self.service.returncode is None

    async def stop_service(self) -> None:
        """Ends it as its launcher would."""
        self.service.terminate()
        await self.service.wait()

    async def hire(self, last: str = "stops") -> Worker:
        """Makes a worker, which begins at once."""
        isolation = "isolated" if KINDS[self.kind].walls else "none"
        if self._crew is None:
            self._crew = await Program.start("crew_program.py", str(self.place), isolation, self.image)
            self.leftovers.is_own(self._crew.process.pid)
        word = f"7{self.chance.randrange(10**8):08}"
        assert self._crew.process.stdin is not None
        self._crew.process.stdin.write(f"{word} {last}\n".encode())
        said = await self._crew.says(f"{word} ")
        assert said.endswith(" connects"), "the worker did not begin"
        return Worker(word, self.leftovers.is_own(int(said.split()[0])))

    async def reaches(self, worker: Worker, moment: str) -> None:
        """Until a worker is at a moment of its life."""
        while moment != "connects":
            said = await self.says(worker)
            if said == moment:
                return
            assert said in (*MOMENTS, "kernel"), f"the worker ended with {said} before {moment}"

    async def says(self, worker: Worker) -> str:
        """The next moment of a worker, or what it ended with."""
        assert self._crew is not None
        return await self._crew.says(f"{worker.word} {worker.pid} ")

    async def ends(self, worker: Worker) -> str:
        """What a worker that was not killed ends with."""
        while (said := await self.says(worker)) in (*MOMENTS, "kernel"):
            continue
        return said

    # -- processes of a sandbox -------------------------------------------------------------------------------------------------------

    @property
    def sandbox_id(self) -> str:
        """Of the one sandbox that there is."""
        (name,) = (name for name in os.listdir(self.scratch) if SANDBOX_ID.fullmatch(name))
        return name

    @property
    def holder(self) -> psutil.Process:
        return psutil.Process(json.loads((self.scratch / self.sandbox_id / "state.json").read_bytes())["holder_pid"])

    @property
    def keeper(self) -> psutil.Process:
        """PID 1 of the sandbox."""
        for process in self.holder.children(recursive=True):
            status = Path(f"/proc/{process.pid}/status").read_text()
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
            if len(numbers) > 1 and numbers[-1] == "1":
                return process
        raise AssertionError("no PID 1 below the holder")

    @property
    def builder(self) -> psutil.Process:
        """The command that built the walls, or what it became: the holder's own child above PID 1."""
        return next(process for process in self.keeper.parents() if process.ppid() == self.holder.pid)

    def below_service(self) -> list[psutil.Process]:
        """Its own children: the holders, and what else helps it."""
        try:
            found: list[psutil.Process] = psutil.Process(self.service.pid).children()
        except psutil.NoSuchProcess:
            return []
        return found

    # -- kills ------------------------------------------------------------------------------------------------------------------------

    async def kill(self, worker: Worker, victims: Sequence[str]) -> None:
        """Kills in one blow: none of the victims sees another one end.

        Args:
            victims: of `worker`, `service`, `below` (every child of the service), `builder` and `keeper`.
        """
        meant = [psutil.Process(pid) for pid in (worker.pid,) if "worker" in victims and psutil.pid_exists(pid)]
        meant += [psutil.Process(self.service.pid)] if "service" in victims else []
        below = self.below_service()
        meant += below if "below" in victims else []
        if "builder" in victims:
            for process in below:
                with contextlib.suppress(psutil.Error):
                    meant += process.children()
        if "keeper" in victims:
            meant.append(self.keeper)
        for process in meant:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        for process in meant:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if "service" in victims:
            await self.service.wait()

    async def is_clean(self, after: str) -> None:
        """Until nothing is left, five seconds after the janitor's next round at the latest."""
        await self._until_none(self.leftovers.processes, after, LEFT_S)

        async def found() -> list[str]:
            await self._judge()
            return self.leftovers.found()

        await self._until_none(found, after, LEFT_S)

    async def _judge(self) -> None:
        """Ends what waits parked, as the node agent does when a job is over: its worker was killed with its word on the way."""
        async with RemoteSandboxes(self.place / "run") as service:
            await service.end([view.sandbox_id for view in await service.views() if view.state == "parked"], "its job is over")

    async def is_still(self, after: str) -> None:
        """Until nothing runs; files may wait for the next service."""
        await self._until_none(self.leftovers.processes, after, 5.0)

    async def _until_none(self, find: Callable[[], list[str] | Awaitable[list[str]]], after: str, timeout_s: float) -> None:
        left: list[str] = []

        async def is_none() -> bool:
            nonlocal left
            found = find()
            left = await found if inspect.isawaitable(found) else found
            return not left

        try:
            await wait_until(is_none, "nothing is left", timeout_s=timeout_s)
        except WaitedTooLong:
            raise AssertionError(f"{timeout_s:g} s after {after} there is still:\n" + "\n".join(left)) from None

    async def leave(self) -> None:
        """Ends what a test started; of a test that failed, what the node left too."""
        for program in (self._crew, self._service):
            if program is not None:
                await program.kill()
        for line in self.leftovers.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[1]), signal.SIGKILL)


@asynccontextmanager
async def a_node(kind: str, place: Path, image: str = "", **environment: str) -> AsyncIterator[Node]:
    """A node that serves; `environment` is for its first service."""
    node = Node(kind, place, image)
    with node.leftovers.adopting():
        try:
            await node.serve(**environment)
            yield node
        finally:
            await node.leave()
