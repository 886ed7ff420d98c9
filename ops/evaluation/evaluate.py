"""Takes an evaluation through the pipeline: many small batches at a time, each written when it is whole, then let go of.

Invariants
    - A batch whose rows are all in the file is not asked for; of another what has ended in Redis is not run again.
    - A batch is let go of in Redis after its rows are on disk. Who is killed in between leaves bodies that go with the run.
    - Nothing is cancelled when the command is stopped: what runs elsewhere goes on, and is there when the command comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ops.evaluation.plan import Batch, Plan
from ops.evaluation.results import ResultsFile, RowResult
from pipeline.errors import BrokerUnreachable, DamagedBody, NewerMessage
from trainer_client import BodyMissing, Run
from trainer_client.results import Result
from trainer_client.run_statistics import RunStatistics
from trainer_client.validation import Validation, ValidationMember

JOBS_AT_ONCE = 1024
"""Samples of batches that are asked for at a time: enough for some nodes; their bodies are some tens of MB in Redis."""
LEAST_BATCHES = 2
"""While the last samples of one end, those of the next keep the workers busy."""
LOOK_EVERY_S = 1.0
FETCHES_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far it is."""

    rows_done: int
    rows_asked: int
    n_valid: int
    """Samples of rows that are done, and have a score."""
    n_passed: int
    statistics: RunStatistics
    """Of the run, over its life."""


async def evaluate(
    run: Run, plan: Plan, results: ResultsFile, *, told: Callable[[Standing], None], jobs_at_once: int = JOBS_AT_ONCE
) -> None:
    """Does what is not done yet.

    Args:
        jobs_at_once: samples that are asked for at a time, or those of two batches where they have more.
        told: of how far it is, each second.

    Raises:
        RollstreamError: the run was taken over or cancelled, or Redis refuses.
    """
    left = [batch for batch in plan.batches if not set(batch.names) <= set(results.rows)]
    largest = max((len(batch.rows) for batch in left), default=1) * plan.n
    places = asyncio.Semaphore(max(LEAST_BATCHES, jobs_at_once // largest))

    async def take(batch: Batch) -> None:
        async with places:
            validation = await run.validate(batch.request, index=batch.index)
            rows = await _rows(batch, validation)
            await asyncio.to_thread(results.add, [row for row in rows if row.row not in results.rows])
            await validation.ack()

    async def look() -> None:
        while True:
            with contextlib.suppress(BrokerUnreachable):  # an outage: the client waits it out, and so does who watches
                statistics, done = await run.statistics(), [*results.rows.values()]
                told(
                    Standing(
                        rows_done=len(done),
                        rows_asked=plan.n_rows,
                        n_valid=sum(row.n_valid for row in done),
                        n_passed=sum(row.n_passed for row in done),
                        statistics=statistics,
                    )
                )
            await asyncio.sleep(LOOK_EVERY_S)

    watch = asyncio.create_task(look(), name="looking")
    try:
        async with asyncio.TaskGroup() as group:
            for batch in left:
                group.create_task(take(batch), name=f"batch {batch.index}")
    except BaseExceptionGroup as raised:
        raise raised.exceptions[0] from raised
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _rows(batch: Batch, validation: Validation) -> list[RowResult]:
    await validation.fetch()
    places = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def sample(member: ValidationMember) -> dict[str, Any]:
        async with places:
            return await _sample(member)

    rows = []
    for name, group in zip(batch.names, validation.groups, strict=True):
        samples = await asyncio.gather(*(sample(member) for member in group.members))
        rows.append(RowResult(row=name, samples=tuple(samples)))
    return rows


async def _sample(member: ValidationMember) -> dict[str, Any]:
    record = member.result.record
    answer, grader, details = await _said(member.result)
    return {
        "job": record.job,
        "score": member.score,
        "passes": member.passes,
        "why": member.why,
        "reward": record.reward,
        "components": dict(record.components),
        "outcome": record.outcome.value,
        "stop": record.stop,
        "answer": answer,
        "grader": grader,
        "details": details,
        "turns": record.turns,
        "sampled_tokens": record.sampled_tokens,
        "total_tokens": record.total_tokens,
        "seconds": dict(record.seconds),
        "version": record.last_version,
        "drawn_again": len(member.earlier),
    }


async def _said(result: Result) -> tuple[str | None, str, dict[str, Any]]:
    """The answer and what the grader said of it, as far as they are there."""
    answer: str | None = None
    grader, details = "", dict[str, Any]()
    try:
        if result.trajectory_key:
            answer = (await result.trajectory()).answer
        if result.grade_key:
            grade = await result.grade()
            grader, details = grade.grader, dict(grade.details)
    except (BodyMissing, DamagedBody, NewerMessage):
        pass  # the record alone says how it ended
    result.forget()
    return answer, grader, details
