"""One node as it is: workers of all stages, sandboxes of bare processes, a scripted model server; and a task whose calls last until
somebody ends them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import psutil

from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import ChatMessage, Grade, JobSpec, Json, Outcome, Stage, Trajectory
from pipeline.process import Shutdown
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.stages.fleet import RUN, TASK, Fleet
from workers.graders.killable import KillablePool
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import EvalContext, RunContext, StageContext
from workers.llm.scripted.options import Latency, ServerOptions
from workers.llm.scripted.policy import PolicyOptions
from workers.llm.scripted.server import ScriptedServer
from workers.sandbox.base import Sandbox
from workers.sandbox.local import LocalSandboxes, owners
from workers.sandbox.local.environment import MARK
from workers.sandbox.local.identity import marked_processes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import RemoteSandboxes, served_here
from workers.sandbox.service.settings import SANDBOXES
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.settings import WorkerSettings
from workers.tools.base import Tool, ToolResult
from workers.worker import serve

ENDLESS_S = 600.0
CHILD = "tests.unit.graders.example_child"
Way = Literal["kernel", "shell", "exec"]
TREE = "sleep 601 & sleep 602 & sleep 603"
"""A command that is a tree of processes."""
CELL = f"import subprocess\nsubprocess.run(['bash', '-c', {TREE!r}])"


class EndlessTool:
    """A tool that runs a tree of processes in the sandbox, in one of the ways that tools have."""

    name = "python"
    description = "Runs for ever."
    parameters: ClassVar[Json] = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}

    def __init__(self, sandbox: Sandbox, way: Way) -> None:
        self._sandbox = sandbox
        self._way = way

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        if self._way == "kernel":
            result: object = await self._sandbox.kernel().run(CELL, timeout_s=ENDLESS_S)
        elif self._way == "shell":
            result = await self._sandbox.shell().run(TREE, timeout_s=ENDLESS_S)
        else:
            result = await self._sandbox.exec(TREE, timeout_s=ENDLESS_S)
        return ToolResult(text=str(result))


@dataclass
class Acting(AgentHandler):
    """The task: the agent loop, with what the test asks for in each stage."""

    has_sandbox: bool = True
    way: Way = "kernel"
    preparing: asyncio.Event | None = None
    """INIT's preparation of the sandbox lasts until it is set."""
    init_fails: bool = False
    grades_by_process: bool = False
    """EVAL asks a grader process, which sleeps."""
    deaf: bool = False
    """RUN goes on after it was interrupted, as a loop with a broad `except` does."""
    deafened: list[str] = field(default_factory=list)
    """What the deaf one met, by the class of its errors."""
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    grader: KillablePool = field(default_factory=lambda: KillablePool(CHILD, processes=1))

    name = TASK

    async def open(self) -> None:
        await self.grader.__aenter__()

    async def close(self) -> None:
        await self.grader.__aexit__(None, None, None)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        return SandboxSpec(isolation=Isolation.NONE) if self.has_sandbox else None

    async def prepare(self, context: StageContext, sandbox: Sandbox) -> None:
        if self.init_fails:
            raise RuntimeError("not today")
        if self.preparing is not None:
            await self.preparing.wait()

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        return (ChatMessage(role="user", content="What is 2 + 2?"),)

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return (EndlessTool(sandbox, self.way),) if sandbox is not None else ()

    async def run(self, context: RunContext) -> Trajectory:
        if not self.deaf:
            return await super().run(context)
        sandbox = await context.sandbox()
        while not self.may_end.is_set():
            try:
                await sandbox.exec(TREE, timeout_s=ENDLESS_S)
            except BaseException as error:  # noqa: BLE001  # the fault that this handler has
                self.deafened.append(type(error).__name__)
                await asyncio.sleep(0)
                if len(self.deafened) > 1:
                    break
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                continue
        raise asyncio.CancelledError  # at last, and without another word to Redis: its worker has left

    async def evaluate(self, context: EvalContext) -> Grade:
        if self.grades_by_process:
            await self.grader.call({"do": "sleep"}, limit_s=ENDLESS_S)
        return Grade(reward=1.0)


def sleepers() -> list[int]:
    """The tools' processes: below this one, and called `sleep`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended between the two looks
            if process.name() == "sleep":
                found.append(process.pid)
    return found


class Workplace(Fleet):
    """A run, workers, sandboxes and a model server, in the test's process.

    Args:
        folder: with a short path: sockets live below it.
    """

    def __init__(self, settings: QueueSettings, client: AsyncClient, folder: Path) -> None:
        super().__init__(settings, client, folder / "w")
        self.folder = folder
        self.model = self.a_model()
        self.handlers: list[Acting] = []
        self._providers: dict[str, RemoteSandboxes] = {}
        self._services = AsyncExitStack()

    def a_model(self, *, seconds_a_token: float = 0.0, tool_rate: float = 1.0) -> ScriptedServer:
        """A model server; by default it calls the tool at once, with code that is well written. First tokens come at once in any case."""
        policy = PolicyOptions(tool_rate=tool_rate, bad_json_rate=0.0, bad_code_rate=0.0, long_rate=0.0, mean_steps=1.0)
        options = ServerOptions(latency=Latency(per_token_s=seconds_a_token, sigma=0.0), policy=policy)
        return ScriptedServer(options, socket_path=self.folder / "m")

    async def attach(self) -> None:
        """Gives the model server to the run."""
        pool = InferencePool(self.client, self.settings.namespace, lease_s=self.settings.lease_s)
        await pool.attach(RUN, [Server(self.model.url, "", "1.0")])

    async def load(self) -> int:
        """Assignments to the model server."""
        pool = InferencePool(self.client, self.settings.namespace, lease_s=self.settings.lease_s)
        return sum((await pool.load(RUN)).values())

    async def sandboxes(self, node: str) -> RemoteSandboxes:
        """The sandboxes of a node, behind a service of its own."""
        if node not in self._providers:
            scratch = self.folder / "w" / node
            scratch.mkdir(parents=True, mode=0o700)
            run_dir = self.folder / f"r{node}"
            local = LocalSandboxes(ProcessBackend(), scratch_dir=scratch / SANDBOXES, run_dir=run_dir, node=node)
            self._providers[node] = await self._services.enter_async_context(served_here(local, run_dir))
        return self._providers[node]

    async def serve(
        self, *stages: Stage, handler: Acting, node: str = "n1", slots: int = 4, url: str = "", grace_s: float = 1.0
    ) -> list[Shutdown]:
        """A worker of each stage; without a name, of all three."""
        provider = await self.sandboxes(node)
        self.handlers.append(handler)
        started = []
        for stage in stages or Stage:
            worker = WorkerSettings(stage=stage, node=node, slots=slots, grace_s=grace_s, scratch_dir=self.folder / "w" / node)
            shutdown = Shutdown()
            settings = self.settings.model_copy(update={"redis_url": url}) if url else self.settings
            work = serve(settings, worker, shutdown, handlers={TASK: lambda: handler}, sandboxes=None if stage is Stage.EVAL else provider)
            self.workers.append((shutdown, asyncio.create_task(work, name=f"{stage}-{node}")))
            started.append(shutdown)
        return started

    async def in_state(self, job: str, stage: str, state: str) -> None:
        """Until a job is there."""

        async def is_there() -> bool:
            h = await self.audit.job(job)
            return (h.get("stage"), h.get("st")) == (stage, state)

        await wait_until(is_there, f"{job} is {state} in {stage}", timeout_s=20)

    async def calls_run(self, count: int = 1) -> None:
        """Until so many model calls run."""
        await wait_until(lambda: len(self.model.engine.request_ids()) == count, f"{count} model calls run", timeout_s=20)

    def sandboxes_of(self, job: str, node: str = "n1") -> int:
        """Sandboxes that stand for a job."""
        return sum(owner.job_id == job for owner in owners(self.folder / "w" / node / SANDBOXES))

    def processes(self) -> list[str]:
        """What runs in any sandbox of this workplace, its holders included."""
        found = []
        for node in self._providers:
            for path in (self.folder / "w" / node / SANDBOXES).glob("*-*-*"):
                found += [f"{path.name}: {process.pid}" for process in marked_processes(MARK, path.name)]
        return found + [f"sleep {pid}" for pid in sleepers()]

    async def tool_runs(self) -> None:
        """Until the tree of the tool's processes is there."""
        await wait_until(lambda: len(sleepers()) == 3, "the tool's processes run", timeout_s=30)

    async def cancelled(self, job: str, reason: str, *, timeout_s: float = 10.0) -> dict[str, str]:
        """The terminal record of a job that was cancelled: the acknowledgement, and nothing of the job is anywhere by then."""
        record = (await self.results(1, timeout_s=timeout_s))[job]
        expected = Outcome.EXPIRED if reason == "deadline" else Outcome.CANCELLED
        assert (record["out"], record["why"], record["rew"]) == (expected.value, reason, "")
        return record

    async def nothing_is_left(self) -> None:
        """No sandbox, no process, no call, no assignment, no entry, no timer; and nobody who did not end."""
        await wait_until(lambda: not self.model.engine.request_ids(), "no model call runs")
        await wait_until(
            lambda: not [owner for node in self._providers for owner in owners(self.folder / "w" / node / SANDBOXES)], "no sandbox"
        )
        await wait_until(lambda: not self.processes(), "no process of a sandbox")

        async def is_idle() -> bool:
            return not await self.load()

        await wait_until(is_idle, "no assignment of the model server")
        assert await self.audit.all_ended(RUN, self.units) == []

    async def leave_all(self) -> None:
        """The workers die. None of them may have ended by itself."""
        assert self.all_alive(), "a worker ended by itself"
        await self.leave()
        self.workers.clear()

    async def close(self) -> None:
        """The sandboxes of all nodes end."""
        await self._services.aclose()
