"""The trainer's part of the demo: gives the run its model, feeds the problems, takes one step, and keeps what the summary shows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from ops.demo.models import DemoModel
from ops.demo.places import DemoState, Places
from ops.look import Look, look
from ops.run_report import report_on
from pipeline.errors import BrokerUnreachable
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys, shard_of
from pipeline.messages import Grade, Prompt, Trajectory
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from trainer_client import Step, connect
from trainer_client.results import Result
from trainer_client.run_statistics import RunStatistics

LOOK_EVERY_S = 0.25
SETTLE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What came of it."""

    step: Step
    statistics: RunStatistics
    """When all that was launched has ended."""
    parked: int
    """Informative groups that closed when the step was complete, and wait for a next one."""
    example: Result
    prompt: Prompt
    trajectory: Trajectory
    grade: Grade | None


async def take_a_step(
    state: DemoState,
    places: Places,
    model: DemoModel,
    *,
    groups: int,
    n: int,
    timeout_s: float,
    show: Callable[[Look], None],
    failed: Callable[[], None],
) -> DemoOutcome:
    """One step of `groups` groups.

    Args:
        show: told how the pipeline looks, while it runs.
        failed: raises when the host has failed.

    Raises:
        WaitTimeout: the step was not complete in time, with what it waits for.
    """
    settings = QueueSettings.load(redis_url=state.redis_url)
    client = command_client(settings)
    try:
        pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
        await pool.attach(state.run, [Server(state.model_url, "", "1.0", shared=True)])  # a run of the user's own may have it, too
        async with connect(settings, run=state.run) as run:
            run.feed(model.rows(), epochs=1000, shuffle_seed=7)
            request = model.request(places, groups, n)

            async def looking() -> None:
                while True:
                    failed()
                    with contextlib.suppress(BrokerUnreachable):  # an outage: the step waits it out, and so does who watches
                        show(await look(client, settings))
                    await asyncio.sleep(LOOK_EVERY_S)

            watch = asyncio.create_task(looking(), name="looking")
            try:
                step = await _first(_one_step(run.steps(request, count=1, timeout_s=timeout_s)), watch)
                # cancelled members settle within a second of the step, groups that run on get their verdicts
                statistics = await run.statistics()
                deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT_S
                while (statistics.in_flight or statistics.groups_in_flight) and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(LOOK_EVERY_S)
                    statistics = await run.statistics()
                show(await look(client, settings))
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            keys = Keys.of_shard(settings.namespace, shard_of(state.run, settings.shards))
            report = await report_on(client, settings, keys, state.run)
            group, example = _most_telling(step)
            return DemoOutcome(
                step=step,
                statistics=statistics,
                parked=report.parked,
                example=example,
                prompt=await step.groups[group].prompt(),
                trajectory=await example.trajectory(),
                grade=await example.grade(),
            )
    finally:
        await client.aclose()


async def _one_step(steps: AsyncIterator[Step]) -> Step:
    async for step in steps:
        return step
    raise AssertionError("a stream of one step gives one step or raises")


async def _first(step: Awaitable[Step], watch: asyncio.Task[None]) -> Step:
    """The step, or what the watch raised."""
    wanted = asyncio.ensure_future(step)
    try:
        await asyncio.wait((wanted, watch), return_when=asyncio.FIRST_COMPLETED)
        if watch.done():
            watch.result()
        return await wanted
    finally:
        wanted.cancel()


def _most_telling(step: Step) -> tuple[int, Result]:
    """A trajectory that used a tool and was right, if there is one; else the one with most turns."""
    ranked = [
        ((result.record.turns > 1, result.reward or 0.0, -abs(result.record.turns - 2)), at, number, result)
        for at, group in enumerate(step.groups)
        for number, result in enumerate(group.members)
    ]
    _, at, _, result = max(ranked, key=lambda row: row[0])
    return at, result
