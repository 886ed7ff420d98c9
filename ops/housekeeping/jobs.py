"""The jobs of housekeeping: what each does, where and how often, and the one function that RQ may call for all of them.

A job is a function of a `Workplace` that answers values which JSON knows. Each may run twice, also at the same time
(docs/adr/0030-housekeeping.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from ops.housekeeping.places import Found, Workplace
from ops.housekeeping.settings import HousekeepingSettings
from pipeline.errors import InvalidRequest
from pipeline.failpoints import failpoint

RUN = "ops.housekeeping.jobs.run"
"""The function that RQ calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingJob:
    """One job."""

    name: str
    does: str
    """A sentence."""
    where: Literal["anywhere", "each node"]
    function: str
    """`module:function`; imported when it runs, so that looking at jobs needs none of what they need."""
    deletes: bool = True

    def every_s(self, settings: HousekeepingSettings) -> float:
        """Between two runs; 0 = never by itself."""
        if self.name == "export" and (settings.export_dir is None or not settings.export_runs):
            return 0.0
        if self.name == "runs" and not settings.gone_run_keep_s:
            return 0.0
        return float(getattr(settings, f"{self.name.replace('-', '_')}_every_s"))

    async def __call__(self, place: Workplace) -> Found:
        module, _, function = self.function.partition(":")
        act: Callable[[Workplace], Awaitable[Found]] = getattr(import_module(f"ops.housekeeping.{module}"), function)
        found = await act(place)
        failpoint("housekeeping_done")
        return found


JOBS: Mapping[str, HousekeepingJob] = {
    job.name: job
    for job in (
        HousekeepingJob(
            name="bodies",
            does="remove what is left in Redis of jobs, attempts and runs that are gone",
            where="anywhere",
            function="bodies:sweep",
        ),
        HousekeepingJob(name="runs", does="forget runs whose trainer never came back", where="anywhere", function="runs:forget"),
        HousekeepingJob(name="streams", does="trim streams of events up to what all have read", where="anywhere", function="streams:trim"),
        HousekeepingJob(name="blobs", does="remove arrays that no job needs", where="anywhere", function="blobs:sweep"),
        HousekeepingJob(name="dead-letters", does="report what died and why", where="anywhere", function="dead_letters:report"),
        HousekeepingJob(name="export", does="write results of runs into files", where="anywhere", function="export:export", deletes=False),
        HousekeepingJob(name="leftovers", does="remove files of dead processes", where="each node", function="leftovers:remove"),
        HousekeepingJob(name="images", does="remove half-made and surplus images", where="each node", function="images:prune"),
    )
}


def job_named(name: str) -> HousekeepingJob:
    """That job.

    Raises:
        InvalidRequest: there is none; says which there are.
    """
    if name not in JOBS:
        raise InvalidRequest(f"no job {name!r} of housekeeping: there are {', '.join(JOBS)}", field="NAME")
    return JOBS[name]


@contextmanager
def a_workplace(*, dry_run: bool = False) -> Iterator[Workplace]:
    """By the settings of this process; an embedded server is held for as long as the block runs."""
    from ops.cli.connection import queue_settings

    with queue_settings() as queue:
        yield Workplace(queue=queue, housekeeping=HousekeepingSettings.load(), dry_run=dry_run)


def run(name: str) -> Found:
    """One job, in this process: what RQ calls."""
    job = job_named(name)
    with a_workplace() as place:
        return asyncio.run(job(place))


__all__ = ["JOBS", "RUN", "HousekeepingJob", "a_workplace", "job_named", "run"]
