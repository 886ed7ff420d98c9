"""A node of real processes, to be killed at chosen moments: its service, and workers with a sandbox each (`node_worker.py`)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from pipeline.testing.wait import WaitedTooLong, wait_until
from tests.contract.sandbox.kinds import KINDS, program_of
from tests.sandbox_leftovers import Leftovers
from workers.sandbox.local.folder import SANDBOX_ID
from workers.sandbox.service import RemoteSandboxes

ROOT = Path(__file__).parents[3]
JANITOR_S = 0.5
"""As in `node_service.py`."""
ROUNDS = int(os.environ.get("ROLLSTREAM_KILL_ROUNDS", "1"))
LEFT_S = JANITOR_S + 5.0
"""Issue and promise 8: five seconds after the janitor's next round."""
TYPED = {"SandboxGone", "SandboxTaken", "SandboxStartError", "NodeUnavailable", "ServiceNotThere", "ends"}
"""What a worker whose sandbox or node was killed may end with; `ends`: the kill came too late for it."""
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


@dataclass(frozen=True, slots=True)
class Born:
    """A process of the nursery."""

    word: str
    pid: int

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(self.pid, number)

    @property
    def has_ended(self) -> bool:
        return not psutil.pid_exists(self.pid)

    async def ended(self) -> None:
        await wait_until(lambda: self.has_ended, f"process {self.pid} has ended", timeout_s=30)


class Nursery:
    """The process that all others are forked from (`nursery.py`); one for a run of tests."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.integration.sandbox_life.nursery"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._said = b""

    async def make(self, role: str, place: Path, *, environment: Mapping[str, str] | None = None, **wanted: str) -> Born:
        """A process that has just begun."""
        word = f"7{int.from_bytes(os.urandom(4)):010}"
        assert self._process.stdin is not None
        line = json.dumps({"role": role, "word": word, "place": str(place), "environment": dict(environment or {}), **wanted})
        self._process.stdin.write(f"{line}\n".encode())
        pid, said = (await self._hear(f"{word} ")).split()
        assert said == "born"
        return Born(word, int(pid))

    async def says(self, born: Born) -> str:
        """The next that a process says."""
        return await self._hear(f"{born.word} {born.pid} ")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    async def _hear(self, start: str) -> str:
        while not (line := await self._line()).startswith(start):
            continue  # of another, which is over
        return line.removeprefix(start)

    async def _line(self) -> str:
        assert self._process.stdout is not None
        number, loop = self._process.stdout.fileno(), asyncio.get_running_loop()
        while b"\n" not in self._said:
            came = asyncio.Event()
            loop.add_reader(number, came.set)
            try:
                async with asyncio.timeout(60):
                    await came.wait()
            finally:
                loop.remove_reader(number)
            read = os.read(number, 65536)
            assert read, "the nursery ended"
            self._said += read
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()


@cache
def nursery() -> Nursery:
    """The one of this run."""
    made = Nursery()
    atexit.register(made.close)
    return made


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
        self.chance = random.Random(os.urandom(8))
        self.nursery = nursery()
        self.leftovers = Leftovers(place)
        self.workers: list[Born] = []
        self._service: Born | None = None

    @property
    def service(self) -> Born:
        assert self._service is not None
        return self._service

    async def begin_service(self, *, gate: str = "", **environment: str) -> Born:
        """Starts a service, where an earlier one has ended."""
        (program,) = program_of(self.kind) or ("",)
        self._service = await self.nursery.make("service", self.place, environment=environment, name=self.kind, program=program, gate=gate)
        self.leftovers.is_own(self._service.pid)
        return self._service

    async def serve(self, *, gate: str = "", **environment: str) -> None:
        """As `begin_service`, until it serves."""
        assert await self.nursery.says(await self.begin_service(gate=gate, **environment)) == "ready"

    async def stop_service(self) -> None:
        """Ends it as its launcher would."""
        self.service.signal(signal.SIGTERM)
        await self.service.ended()

    async def hire(self, last: str = "stops") -> Born:
        """Makes a worker, which begins at once."""
        isolation = "isolated" if KINDS[self.kind].walls else "none"
        worker = await self.nursery.make("worker", self.place, isolation=isolation, image=self.image, last=last)
        self.leftovers.is_own(worker.pid)
        self.workers.append(worker)
        return worker

    async def reaches(self, worker: Born, moment: str) -> None:
        """Until a worker is at a moment of its life."""
        while (said := await self.nursery.says(worker)) != moment:
            assert said in (*MOMENTS, "kernel"), f"the worker ended with {said} before {moment}"

    async def ends(self, worker: Born) -> str:
        """What a worker that was not killed ends with."""
        while (said := await self.nursery.says(worker)) in (*MOMENTS, "kernel"):
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

    async def kill(self, worker: Born, victims: Sequence[str]) -> None:
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
            await self.service.ended()

    async def chance_kill(self, moment: str, victims: Sequence[str]) -> str:
        """Kills some time after a moment; returns when, for the message of a failure. A worker that was left alive ends typed."""
        worker = await self.hire(moment)
        await self.reaches(worker, moment)
        after_s = self.chance.uniform(0.0, MOMENTS[moment])
        await asyncio.sleep(after_s)  # what is tried is any moment, so this one is drawn
        await self.kill(worker, victims)
        when = f"{' and '.join(victims)} were killed {after_s * 1e3:.1f} ms into {moment!r}"
        if "worker" not in victims:
            ended_by = await self.ends(worker)
            assert ended_by in TYPED, f"{when}: the worker ended with {ended_by}"
        return when

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
        for born in (*self.workers, *([self._service] if self._service is not None else [])):
            born.signal(signal.SIGKILL)
            await born.ended()
        for line in self.leftovers.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[1]), signal.SIGKILL)


@asynccontextmanager
async def a_node(kind: str, place: Path, image: str = "", *, gate: str = "") -> AsyncIterator[Node]:
    """A node that serves; the gate is of its first service."""
    node = Node(kind, place, image)
    with node.leftovers.adopting():
        try:
            await node.serve(gate=gate)
            yield node
        finally:
            await node.leave()
