"""Steps of a run over HTTP: asked for by index, taken in order, given out as often as they are asked for, until they are acknowledged.

Invariants
    - One step is taken at a time, in the order in which they were asked for; the run opens as many ahead as the request says.
    - Asked again, a step is the same one: its request is that of the first time.
    - Results of its members can be read from when it is given out until its ack.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import structlog

from pipeline.messages import JobResult
from trainer_client import Group, Result, Run, Step, StepRequest

log = structlog.get_logger(__name__)


class Steps:
    """The steps that clients have asked for and not acknowledged."""

    def __init__(self, run: Run, tasks: asyncio.TaskGroup) -> None:
        self._run = run
        self._tasks = tasks
        self._taking: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Step | None]] = {}
        self._turn = asyncio.Lock()
        self._stream: AsyncGenerator[Step] | None = None
        self._stream_of: tuple[StepRequest, int] | None = None
        self.members: dict[str, Result] = {}
        """Of steps that were given out, by job."""

    @property
    def next_index(self) -> int:
        """The first step that is not acknowledged."""
        return 1 if self._run.next_step is None else self._run.next_step

    @property
    def open(self) -> list[int]:
        """Asked for and not acknowledged."""
        return sorted(self._asked)

    def ask(self, index: int, request: StepRequest) -> asyncio.Future[Step | None]:
        """The step, when it is complete; None when the prompts ended before it had a group."""
        if index not in self._asked:
            future: asyncio.Future[Step | None] = asyncio.get_running_loop().create_future()
            self._asked[index] = future
            task = self._tasks.create_task(self._take(index, request, future), name=f"step-{index}")
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)
        return self._asked[index]

    def get(self, index: int) -> asyncio.Future[Step | None] | None:
        """A step that was asked for."""
        return self._asked.get(index)

    def has_ended(self, index: int) -> bool:
        """Whether the prompts ended before a step that was asked for had a group. It stays so: later prompts are for later steps."""
        step = self._asked.get(index)
        return step is not None and step.done() and not step.cancelled() and step.exception() is None and step.result() is None

    async def ack(self, index: int) -> list[int]:
        """Lets go of a step and of all before it; returns which.

        Raises:
            KeyError: it was not given out by this process.
        """
        future = self._asked[index]
        if not future.done() or future.exception() is not None:
            raise KeyError(index)
        step = future.result()
        if step is not None:
            await step.ack()
        gone = [known for known in self.open if known <= index]
        for known in gone:
            future = self._asked.pop(known)
            step = future.result() if future.done() and not future.cancelled() and future.exception() is None else None
            for group in step.groups if step is not None else ():
                for result in (*group.members, *group.others):
                    self.members.pop(result.job, None)
        return gone

    async def close(self) -> None:
        """Waits for no step any more. The steps go on; the next process asks for them again."""
        for task in self._taking:
            task.cancel()
        await asyncio.gather(*self._taking, return_exceptions=True)
        if self._stream is not None:
            await self._stream.aclose()

    async def _take(self, index: int, request: StepRequest, future: asyncio.Future[Step | None]) -> None:
        try:
            async with self._turn:
                step = await self._next(index, request)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer to whoever asked for this step
            self._asked.pop(index, None)
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: maybe nobody waits any more
            return
        if step is not None:
            for group in step.groups:
                self.members.update({result.job: result for result in (*group.members, *group.others)})
        if not future.done():
            future.set_result(step)

    async def _next(self, index: int, request: StepRequest) -> Step | None:
        if self._stream is None or self._stream_of != (request, index):
            if self._stream is not None:
                await self._stream.aclose()
            self._stream = cast("AsyncGenerator[Step]", self._run.steps(request, start=index))
        self._stream_of = (request, index + 1)
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._stream = None
            return None
        except BaseException:
            self._stream = None
            raise


def step_as_map(step: Step) -> dict[str, object]:
    """A step as it is answered: records and numbers; trajectories are fetched by job."""
    return {
        "index": step.index,
        "state": "complete",
        "is_short": step.is_short,
        "cancelled_for": step.record.cancelled_for,
        "metrics": step.metrics,
        "groups": [_group(group) for group in step.groups],
    }


def _group(group: Group) -> dict[str, object]:
    return {
        "id": group.id,
        "prompt": group.prompt_id,
        "rewards": list(group.rewards),
        "staleness": group.staleness,
        "is_stale": group.is_stale,
        "members": [_member(result) for result in group.members],
        "others": [_member(result) for result in group.others],
    }


def _member(result: Result) -> dict[str, object]:
    return {**result_as_map(result.record), "loss": result.loss.value}


def result_as_map(record: JobResult) -> dict[str, object]:
    """How a job ended."""
    return {
        "job": record.job,
        "outcome": record.outcome.value,
        "reason": record.reason,
        "reward": record.reward,
        "components": dict(record.components),
        "stop": record.stop,
        "turns": record.turns,
        "sampled_tokens": record.sampled_tokens,
        "total_tokens": record.total_tokens,
        "versions": [record.first_version, record.last_version],
        "seconds": dict(record.seconds),
        "attempt": record.attempt,
        "has_trajectory": bool(record.run_attempt),
    }


__all__ = ["Steps", "result_as_map", "step_as_map"]
