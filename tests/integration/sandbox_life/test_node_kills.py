"""Whatever of a node is killed: after the janitor's next round no process, mount, socket, FUSE helper or folder of a sandbox is left.

`ROLLSTREAM_KILL_ROUNDS` repeats each of them so often; once, where it is not set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import KINDS
from tests.sandbox_ground import apptainer_program

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ROUNDS = int(os.environ.get("ROLLSTREAM_KILL_ROUNDS", "1"))
JANITOR_S = 1.0
"""As in `node_program.py`."""
LEFT_S = JANITOR_S + 5.0
"""Issue and promise 8: five seconds after the janitor's next round."""
OWN_FILES = {"sandbox.sock", "sandbox.token", "sandbox.lock"}


class Program:
    """One of our processes, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, script: str, *arguments: str) -> Program:
        runtime = apptainer_program()
        path = os.environ.get("PATH", os.defpath) + (f":{runtime.parent}" if runtime else "")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / script), *arguments),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return cls(process)

    async def says(self, wanted: Callable[[str], bool] = lambda line: not line.startswith(("20", "{"))) -> str:
        """Its next line that is no log; empty at its end."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stdout.readline()).decode():
                if wanted(line):
                    return line.strip()
        return ""

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Node:
    """A node of processes: its service, and workers with a sandbox each."""

    def __init__(self, backend: str, place: Path) -> None:
        self.backend = backend
        self.place = place
        self.scratch = place / "s" / "sandboxes"
        self.service: Program | None = None
        self.worker: Program | None = None
        self.word = ""
        self.sandbox_id = ""

    async def serve(self) -> None:
        self.service = await Program.start("node_program.py", self.backend, str(self.place))
        assert (await self.service.says()).startswith("ready")

    async def work(self, *words: str) -> None:
        """A worker with a sandbox in which everything runs."""
        self.word = f"7{random.randrange(10**8):08}"
        isolation = "isolated" if KINDS[self.backend].walls else "none"
        self.worker = await Program.start("worker_program.py", str(self.place), isolation, self.word, *words)
        self.sandbox_id, _, kernel = (await self.worker.says()).partition(" ")
        assert kernel == "ok", "the worker ended before its sandbox ran"
        assert len(self.processes()) > 4

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

    def processes(self) -> list[str]:
        """What runs of the sandbox: by command line, environment and mounts, and by nothing that the product wrote down."""
        words = [self.word.encode(), self.sandbox_id.encode()]
        ours = {str(os.getpid()), *(str(each.process.pid) for each in (self.service, self.worker) if each is not None)}
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or name in ours:
                continue
            for file in ("cmdline", "environ", "mountinfo"):
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    if any(word in Path(f"/proc/{name}/{file}").read_bytes() for word in words):
                        found.append(f"{name} {Path(f'/proc/{name}/comm').read_text().strip()} by its {file}")
                        break
        return found

    def files(self) -> list[str]:
        """What lies about of sandboxes."""
        found = [path.name for folder in (self.scratch, self.place / "run") for path in folder.iterdir() if path.name not in OWN_FILES]
        return found + [path.name for path in self.scratch.parent.iterdir() if path.name not in {"sandboxes", "sandbox.lock"}]

    async def is_clean(self) -> None:
        await wait_until(lambda: not self.processes() and not self.files(), "nothing is left", timeout_s=LEFT_S)


@pytest.fixture
async def node(kind_name: str, place: Path) -> AsyncIterator[Node]:
    node = Node(kind_name, place)
    await node.serve()
    yield node
    for program in (node.worker, node.service):
        if program is not None:
            await program.kill()
    for line in node.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def walled_node(node: Node) -> Node:
    return node


@pytest.mark.parametrize("stage", ["init", "run"])
async def test_a_killed_worker_leaves_nothing(node: Node, stage: str) -> None:
    """INIT: in the sandbox that it started. RUN: in one that was parked, and attached to."""
    for _ in range(ROUNDS):
        await node.work(*(["leave"] if stage == "run" else []))
        assert node.worker is not None

        await node.worker.kill()

        await node.is_clean()


async def test_a_killed_service_leaves_nothing_and_its_workers_are_told(node: Node) -> None:
    for _ in range(ROUNDS):
        await node.work()
        assert node.service is not None
        assert node.worker is not None

        await node.service.kill()

        assert await node.worker.says() == "SandboxTaken"
        await wait_until(lambda: not node.processes(), "its sandboxes end with it", timeout_s=5)
        await node.serve()
        await node.is_clean()


async def test_a_killed_holder_leaves_nothing_and_the_worker_is_told(node: Node) -> None:
    for _ in range(ROUNDS):
        await node.work()
        assert node.worker is not None

        node.holder.kill()

        assert await node.worker.says() == "SandboxGone"
        await node.is_clean()


@pytest.mark.parametrize("victim", ["keeper", "builder"])
async def test_killed_walls_leave_nothing_and_the_worker_is_told(walled_node: Node, victim: str) -> None:
    """PID 1 of the sandbox, or what stands above it: the command that built the walls."""
    node = walled_node
    for _ in range(ROUNDS):
        await node.work()
        assert node.worker is not None

        (node.keeper if victim == "keeper" else node.builder).kill()

        assert await node.worker.says() == "SandboxGone"
        await node.is_clean()


async def test_a_node_killed_as_a_whole_leaves_nothing(node: Node) -> None:
    """The launcher, the service and the workers in one blow, as when a job of Slurm is ended: only the next service is left to tidy up."""
    for _ in range(ROUNDS):
        await node.work()
        assert node.service is not None
        assert node.worker is not None
        holder = node.holder

        for process in (node.worker.process, node.service.process):  # frozen first: none of them sees another end
            process.send_signal(signal.SIGSTOP)
        holder.suspend()
        await asyncio.gather(node.worker.kill(), node.service.kill())
        holder.kill()

        await node.serve()
        await node.is_clean()
