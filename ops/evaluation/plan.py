"""What an evaluation asks: rows, samples of each, how the model samples, and a name that is the same whenever the same is asked.

The rows go through the pipeline in batches, a validation each (`docs/adr/0007-validation-and-admission.md`), so that what a batch made is
written and let go of while others go on. Batches are made of the rows' order alone: a command that is started again makes the
same ones, and finds what of them has ended.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pipeline.messages import JobTemplate
from pipeline.validation_request import ValidationRequest
from workers.handlers.task_data import Row

JOBS_A_BATCH = 16
"""One row where many samples of it are asked for: a batch is written when it is whole, and who stops the command has what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that are one validation."""

    index: int
    """Its name in the run."""
    rows: tuple[Row, ...]
    request: ValidationRequest

    @property
    def names(self) -> tuple[str, ...]:
        """Ids of its rows."""
        return tuple(str(row["id"]) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of it."""

    task: str
    run: str
    """Id of its run in Redis."""
    digest: str
    """Equal for evaluations that ask for the same samples of the same rows."""
    n: int
    threshold: float
    batches: tuple[Batch, ...]

    @property
    def template(self) -> JobTemplate:
        """What the jobs have in common."""
        return self.batches[0].request.template()

    @property
    def n_rows(self) -> int:
        return sum(len(batch.rows) for batch in self.batches)

    @property
    def n_jobs(self) -> int:
        """Samples that are asked for; what breaks is drawn again beside them."""
        return self.n_rows * self.n


def plan_of(
    fields: Mapping[str, Any],
    rows: Sequence[Row],
    *,
    n: int,
    threshold: float,
    metric: str,
    run: str = "",
    jobs_a_batch: int = JOBS_A_BATCH,
) -> Plan:
    """The plan of a request.

    Args:
        fields: of the request, without rows.
        rows: at least one, each with an `id` of its own.
        n: samples of each.
        threshold: a sample passes when its score is at least this.
        metric: named part of the reward that is the score.
        run: id of the run; empty = named after the task and what is asked.
        jobs_a_batch: a batch has as many rows as make so many samples, one at least.

    Raises:
        InvalidRequest: a field does not fit.
    """
    a_batch = max(1, jobs_a_batch // n)
    batches: list[Batch] = []
    for at in range(0, len(rows), a_batch):
        part = tuple(rows[at : at + a_batch])
        request = ValidationRequest.parse({**fields, "prompts": part, "n": n, "threshold": threshold, "metric": metric})
        batches.append(Batch(index=len(batches), rows=part, request=request))
    asked = [(batch.request.digest(), batch.names) for batch in batches]
    digest = hashlib.blake2b(orjson.dumps([asked, threshold, metric]), digest_size=5).hexdigest()
    task = str(fields["task"])
    return Plan(task=task, run=run or f"eval-{_in_a_name(task)}-{digest}", digest=digest, n=n, threshold=threshold, batches=tuple(batches))


def _in_a_name(task: str) -> str:
    """A task's name as a part of a run's id, which has no capitals and no dots."""
    return re.sub(r"[^a-z0-9_-]", "-", task.lower())[:24]
