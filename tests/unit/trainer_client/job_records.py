"""Terminal records of jobs as a client reads them."""

from __future__ import annotations

from dataclasses import replace

from pipeline.messages import JobResult, Outcome

_OK = JobResult(
    entry="1-1",
    job="",
    run="r",
    group="",
    member=0,
    task="math",
    outcome=Outcome.OK,
    reason="",
    reward=1.0,
    components={},
    stop="finished",
    attempt=3,
    run_attempt=2,
    eval_attempt=3,
    sampled_tokens=1,
    total_tokens=2,
    turns=1,
    first_version="",
    last_version="",
    seconds={},
)


def a_job_record(job: str = "r.one", **changes: object) -> JobResult:
    """A job of run `r` that came to a good end."""
    return replace(_OK, job=job, **changes)  # type: ignore[arg-type]  # the record's own fields
