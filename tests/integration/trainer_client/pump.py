"""Workers of all three stages in one task: they carry each job through and end it as the test says, by the product's own scripts."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pipeline.codec import encode
from pipeline.errors import BrokerUnreachable
from pipeline.messages import Outcome, Settlement, Stage, StopReason, Trajectory
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.scripts.calls import MAX_BATCH, Held
from pipeline.segment_sizes import sizes_of
from pipeline.testing import ManualWorker, a_grade, a_segment, a_settlement, a_trajectory
from tests.integration.trainer_client.rows import row_of

IDLE_PAUSE_S = 0.005
Rewarder = Callable[[str], float | None]
"""Job id -> reward; None = its infrastructure broke."""


def alternating(job: str) -> float:
    """Half of each group right: every group is informative."""
    member = job.rpartition(".")[2]
    return float(int(member) % 2) if member.isdigit() else 1.0


def half_of_prompts_alike(job: str) -> float:
    """Every second row of the data set teaches nothing; by its number, so that the test can count."""
    return 1.0 if row_of(job) % 2 else alternating(job)


def one_version(_: str) -> str:
    """Nobody updates the weights."""
    return "1.0"


def finished(_job: str) -> StopReason:
    """Each job came to its end."""
    return StopReason.FINISHED


def trajectory_of(job: str) -> Trajectory:
    """What the pump says a job produced: other arrays for every job."""
    return a_trajectory(segments=(a_segment(tokens=24, sampled=7, seed=zlib.crc32(job.encode())),), answer=f"answer of {job}")


@dataclass
class Pump:
    """Carries jobs through INIT, RUN and EVAL.

    Args:
        rewarder: what EVAL finds.
        held_back: jobs (by id) that stay in RUN until they are taken out of this set.
        version_of: label of the policy that sampled a job.
        stop_of: why its turns ended.
        trajectory_of: what it produced.
        tells_sizes: whether the record of a job says how large its segments are, as those of older workers do not.
    """

    scripts: Scripts
    rewarder: Rewarder = alternating
    held_back: set[str] = field(default_factory=set)
    hold_all: bool = False
    version_of: Callable[[str], str] = one_version
    stop_of: Callable[[str], StopReason] = finished
    trajectory_of: Callable[[str], Trajectory] = trajectory_of
    tells_sizes: bool = True
    ended: list[str] = field(default_factory=list)
    """Jobs that were settled, in order."""
    _waiting: dict[str, Held] = field(default_factory=dict)
    _life: int = 1

    async def round(self) -> int:
        """Carries what is there through all stages; returns how many attempts were moved."""
        moved = 0
        init, run, evaluate = (self._worker(stage) for stage in Stage)
        for worker in (init, run, evaluate):
            await worker.take_name()
        for batch in _batches(await init.take()):
            await init.hand_off(*batch)
            moved += len(batch)
        self._waiting.update({held.job: held for held in await run.take()})
        free = [held for job, held in self._waiting.items() if not self.hold_all and job not in self.held_back]
        for held in free:
            del self._waiting[held.job]
            words = await run.hand_off(held, body=encode(self.trajectory_of(held.job)))
            if words[0].startswith("cx:"):
                await run.settle(held, settlement=Settlement(outcome=Outcome.CANCELLED, reason=words[0][3:]))
            moved += 1
        for held in await evaluate.take():
            await self._end(evaluate, held)
            moved += 1
        return moved

    def _worker(self, stage: Stage) -> ManualWorker:
        return ManualWorker(self.scripts, stage, boot=f"boot{self._life}")

    async def _start_again(self) -> None:
        """As a process that died with Redis, so that its name lapsed: its successor takes the name and puts back what it held."""
        self._waiting.clear()
        self._life += 1
        for stage in Stage:
            successor = self._worker(stage)
            await ask(successor.client, "DEL", successor.keys.worker(successor.consumer))
            await successor.take_name()
            claims = await successor.own_pending()
            if claims:
                await successor.recover("restart", *claims)

    async def _end(self, worker: ManualWorker, held: Held) -> None:
        reward = self.rewarder(held.job)
        if reward is None:
            await worker.settle(held, settlement=a_settlement(None))
        else:
            version = self.version_of(held.job)
            sizes = sizes_of(trajectory := self.trajectory_of(held.job))
            settlement = a_settlement(
                reward,
                sampled_tokens=sum(int(segment.sampled_mask.sum()) for segment in trajectory.segments),
                total_tokens=sum(size.tokens for size in sizes),
                stop=self.stop_of(held.job).value,
                first_version=version,
                last_version=version,
                segments=sizes if self.tells_sizes else (),
            )
            await worker.settle(held, settlement=settlement, body=encode(a_grade(reward)), kind="eval")
        self.ended.append(held.job)

    async def run(self, stop: asyncio.Event) -> None:
        """Pumps until `stop`; waits while Redis is away."""
        was_cut = False
        while not stop.is_set():
            try:
                if was_cut:
                    await self._start_again()
                was_cut = False
                moved = await self.round()
            except BrokerUnreachable:
                was_cut = True
                moved = 0
            if not moved:
                wait = asyncio.ensure_future(stop.wait())
                await asyncio.wait([wait], timeout=IDLE_PAUSE_S)
                wait.cancel()


@asynccontextmanager
async def pumping(pump: Pump) -> AsyncIterator[Pump]:
    """The pump, at work while the block runs."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pump.run(stop), name="pump")
        try:
            yield pump
        finally:
            stop.set()


def _batches(held: list[Held]) -> list[list[Held]]:
    return [held[at : at + MAX_BATCH] for at in range(0, len(held), MAX_BATCH)]
