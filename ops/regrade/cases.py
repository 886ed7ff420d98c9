"""What is judged again: a trajectory with the prompt, the options and the grade that it had.

All of it is in Redis until the trainer acknowledges the result (of filtered groups, until they close), and in a saved record
(`rollstream trajectory save`). What is missing is a `NotGradable` that says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from ops.regrade.difference import Found
from pipeline import codec
from pipeline.errors import DamagedBody, NewerMessage, RollstreamError
from pipeline.keys import Keys
from pipeline.messages import Grade, JobSpec, JobTemplate, Outcome, Prompt, RewardSource, Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.trajectory_file import TrajectoryRecord
from workers.handlers.base import Environment

Record = TypeVar("Record")
PAGE = 1000
JUDGED = frozenset(("", Outcome.OK.value, Outcome.MODEL_FAILURE.value, Outcome.INFRA_FAILURE.value))
"""Outcomes of jobs that EVAL judges, or tried to; empty = not ended yet."""
NOT_KEPT = (
    "Bodies go when a result is acknowledged, those of a filtered group when it closes (keep_filtered keeps some): regrade before, or save "
    "what you will want with rollstream trajectory save, and regrade the files"
)


class NotGradable(RollstreamError):
    """A job that cannot be judged again; says why, and what to do."""

    def __init__(self, job: str, why: str) -> None:
        super().__init__(f"{job}: {why}")
        self.job = job
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One trajectory to be judged again."""

    job: str
    outcome: str
    """Of its job; empty while it has not ended."""
    spec: JobSpec
    environment: Environment
    trajectory: Trajectory
    before: Found
    """What EVAL found then."""


def case_of(record: TrajectoryRecord) -> Case:
    """The case in a record, as it was read from Redis or from a file.

    Raises:
        NotGradable
    """
    facts = record.facts
    job = facts.get("job", record.name)
    if not record.ended:
        raise NotGradable(job, "it is in RUN: there is no trajectory yet")
    if facts.get("outcome", "") not in JUDGED:
        raise NotGradable(job, f"it ended as {facts['outcome']}: EVAL judges no such job")
    template = _part(record, JobTemplate, "template", job)
    prompt = _part(record, Prompt, "prompt", job)
    if template.reward is RewardSource.OUTSIDE:
        raise NotGradable(job, "its reward comes from outside: no grader of its task gives one")
    environment = _part(record, Environment, "environment", job) if "environment" in record.parts else Environment()
    grade = _part(record, Grade, "grade", job) if "grade" in record.parts else None
    spec = JobSpec(
        job=job,
        run=facts.get("run", job.partition(".")[0]),
        group=facts.get("group", ""),
        member=prompt.first_member + _number(facts, "member"),
        draw=_number(facts, "draw"),
        attempt=max(1, _number(facts, "attempt")),
        template=template,
        prompt=prompt,
    )
    return Case(
        job=job,
        outcome=facts.get("outcome", ""),
        spec=spec,
        environment=environment,
        trajectory=record.trajectory,
        before=Found() if grade is None else Found.of(grade),
    )


def _number(facts: Mapping[str, str], name: str) -> int:
    text = facts.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _part(record: TrajectoryRecord, cls: type[Record], name: str, job: str) -> Record:
    body = record.parts.get(name)
    if body is None:
        raise NotGradable(job, f"its {name} is not kept. {NOT_KEPT}")
    try:
        return codec.decode(cls, body)
    except (DamagedBody, NewerMessage) as error:
        raise NotGradable(job, f"its {name} cannot be read: {error}") from error


async def jobs_of_run(client: AsyncClient, keys: Keys, run: str, *, since_ms: int = 0, limit: int | None = None) -> list[str]:
    """Ended jobs of a run whose results are not acknowledged and that have a trajectory, the newest first.

    Args:
        since_ms: those that ended then or later, by the clock of Redis.
        limit: at most so many.
    """
    jobs: list[str] = []
    last, key = "+", keys.results(run)
    while limit is None or len(jobs) < limit:
        page = cast(list[tuple[bytes, object]], await ask(client, "XREVRANGE", key, last, since_ms, "COUNT", PAGE))
        for _, fields in page:
            row = _texts(fields)
            if row.get("kind") == "job" and row.get("ra", "0") != "0" and row.get("out") in JUDGED:
                jobs.append(row["job"])
        if len(page) < PAGE:
            break
        last = "(" + page[-1][0].decode()
    return jobs[:limit]


def _texts(fields: object) -> dict[str, str]:
    pairs = fields.items() if isinstance(fields, dict) else zip(*[iter(cast(list[bytes], fields))] * 2, strict=True)
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs}
