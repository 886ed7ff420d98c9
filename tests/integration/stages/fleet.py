"""Real workers of the three stages in the test's own process, with a task whose parts the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import Failure, Grade, JobSpec, JobTemplate, Prompt, Stage, Trajectory
from pipeline.process import Shutdown
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from pipeline.testing import QueueAudit, a_template, a_trajectory, wait_until
from workers.agent.trajectory import SegmentDelta, TurnDelta
from workers.handlers.base import Ended, Environment, EvalContext, RunContext, StageContext, TaskHandler
from workers.sandbox.service import RemoteSandboxes
from workers.settings import WorkerSettings
from workers.worker import serve

RUN = "run1"
TASK = "play"


async def makes_nothing(context: StageContext) -> Environment:
    return Environment()


async def answers(context: RunContext) -> Trajectory:
    return a_trajectory()


async def is_right(context: EvalContext) -> Grade:
    return Grade(reward=1.0, grader="play/1")


def has_no_gold(spec: JobSpec) -> Trajectory | None:
    return None


def as_it_is(context: StageContext, failure: Failure) -> Failure | Ended:
    return failure


@dataclass
class Play(TaskHandler):
    """A task of which each part is a function; those that are not given do well."""

    on_init: Callable[[StageContext], Awaitable[Environment]] = makes_nothing
    on_run: Callable[[RunContext], Awaitable[Trajectory]] = answers
    on_evaluate: Callable[[EvalContext], Awaitable[Grade]] = is_right
    on_gold: Callable[[JobSpec], Trajectory | None] = has_no_gold
    on_init_failed: Callable[[StageContext, Failure], Failure | Ended] = as_it_is
    on_run_failed: Callable[[StageContext, Failure], Failure | Ended] | None = None
    on_eval_failed: Callable[[StageContext, Failure], Failure | Ended] = as_it_is

    name = TASK

    async def init(self, context: StageContext) -> Environment:
        return await self.on_init(context)

    async def run(self, context: RunContext) -> Trajectory:
        return await self.on_run(context)

    async def evaluate(self, context: EvalContext) -> Grade:
        return await self.on_evaluate(context)

    def gold(self, spec: JobSpec) -> Trajectory | None:
        return self.on_gold(spec)

    def init_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        return self.on_init_failed(context, failure)

    def run_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        return super().run_failed(context, failure) if self.on_run_failed is None else self.on_run_failed(context, failure)

    def eval_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        return self.on_eval_failed(context, failure)


def a_delta(index: int) -> TurnDelta:
    """A journalled turn that is all of `a_trajectory`."""
    whole = a_trajectory()
    segment = whole.segments[0]
    part = SegmentDelta(
        segment=0,
        at=0,
        token_ids=segment.token_ids,
        sampled_mask=segment.sampled_mask,
        loss_mask=segment.loss_mask,
        logprobs=segment.logprobs,
        versions=segment.versions,
    )
    return TurnDelta(index=index, segments=(part,), turns=whole.turns, messages=whole.messages)


class Fleet:
    """A run with one task, and workers of its stages."""

    def __init__(self, settings: QueueSettings, client: AsyncClient, scratch: Path, *, measures: Path | None = None) -> None:
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.audit = QueueAudit(client, self.keys)
        self.units: list[Unit] = []
        self.incarnation = 0
        self.workers: list[tuple[Shutdown, asyncio.Task[int]]] = []
        self._scratch = scratch
        self._measures = measures

    async def connect(self) -> None:
        """Takes the run."""
        self.incarnation = await self.scripts.connect_run(RUN, nonce="trainer", ttl_s=3600)

    async def add(
        self,
        *jobs: str,
        template: JobTemplate | None = None,
        template_body: bytes | None = None,
        prompt_body: bytes | None = None,
        max_failed: int = 2,
    ) -> list[str]:
        """Puts single jobs into the queue; their ids."""
        template = template or a_template(task=TASK, max_failed=max_failed)
        units = [
            Unit(f"{RUN}.{job}", 0, job, 0, "1.0", codec.encode(Prompt(id=job, data={})) if prompt_body is None else prompt_body)
            for job in jobs
        ]
        name = f"t{len(self.units)}"
        body = codec.encode(template) if template_body is None else template_body
        await self.scripts.accept(RUN, self.incarnation, template, name, body, units, max_waiting=10**6, window=256)
        self.units += units
        return [unit.id for unit in units]

    def start(
        self,
        *stages: Stage,
        play: TaskHandler | None = None,
        node: str = "n1",
        slots: int = 4,
        grace_s: float = 1.0,
        adaptive: bool = True,
        sandboxes: RemoteSandboxes | None = None,
    ) -> list[Shutdown]:
        """A worker of each stage; without a name, of all three. How to end them."""
        started = []
        for stage in stages or Stage:
            worker = WorkerSettings(
                stage=stage,
                node=node,
                slots=slots,
                grace_s=grace_s,
                adaptive=adaptive,
                scratch_dir=self._scratch / node,
                measures_dir=self._measures,
            )
            shutdown = Shutdown()
            task = asyncio.create_task(
                serve(self.settings, worker, shutdown, handlers={TASK: lambda: play or Play()}, sandboxes=sandboxes), name=f"{stage}-{node}"
            )
            self.workers.append((shutdown, task))
            started.append(shutdown)
        return started

    async def results(self, count: int, *, timeout_s: float = 10.0) -> dict[str, dict[str, str]]:
        """Terminal records by job, once there are so many."""

        async def enough() -> bool:
            return int(await ask(self.client, "XLEN", self.keys.results(RUN))) >= count

        await wait_until(enough, f"{count} results", timeout_s=timeout_s)
        return {record["job"]: record for record in await self.audit.results(RUN)}

    async def result(self, *, timeout_s: float = 10.0) -> dict[str, str]:
        """The one terminal record."""
        (record,) = (await self.results(1, timeout_s=timeout_s)).values()
        return record

    async def grade(self, record: dict[str, str]) -> Grade:
        """The grade that a record names."""
        return codec.decode(Grade, await ask(self.client, "GET", self.keys.body(record["job"], record["ea"], "eval")))

    async def trajectory(self, record: dict[str, str]) -> Trajectory:
        """The trajectory that a record names."""
        return codec.decode(Trajectory, await ask(self.client, "GET", self.keys.body(record["job"], record["ra"], "run")))

    def all_alive(self) -> bool:
        """Whether no worker has ended that was not asked to."""
        return not any(task.done() and not shutdown.stop.is_set() for shutdown, task in self.workers)

    async def leave(self) -> None:
        for _, task in self.workers:
            task.cancel()
        await asyncio.gather(*(task for _, task in self.workers), return_exceptions=True)
