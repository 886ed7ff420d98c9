"""Records of a run as a client reads them: of ended jobs, closed groups and steps. Each builder takes what matters to the test."""

from __future__ import annotations

from dataclasses import replace

from pipeline.messages import JobResult, Outcome
from pipeline.supervisor.actions import Verdict
from trainer_client.records import GroupRecord, StepRecord

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


def a_closed_group(verdict: Verdict, **changes: object) -> GroupRecord:
    """A group of two members, accounted to step 4."""
    group = GroupRecord(
        entry="1-0",
        run="r",
        group="r.e0-1.0",
        prompt="e0-1",
        draw=0,
        verdict=verdict,
        why="",
        step=4,
        want=2,
        valid=2,
        values=(),
        mean=0.5,
        spread=1.0,
        sampled_tokens=20,
        total_tokens=60,
        first_version="1.0",
        last_version="1.0",
        incarnation=1,
    )
    return replace(group, **changes)  # type: ignore[arg-type]  # the record's own fields


def a_step_record(**changes: object) -> StepRecord:
    """Step 4, of which nothing was accounted."""
    step = StepRecord(
        entry="1-0",
        run="r",
        index=4,
        groups=(),
        target=2,
        n=2,
        filtered=0,
        dropped=0,
        dead=0,
        cancelled=0,
        surplus=0,
        stale=0,
        redundant=0,
        tokens_kept=0,
        tokens_filtered=0,
        tokens_cancelled=0,
        tokens_failed=0,
        took_s=2.0,
        incarnation=1,
        is_short=False,
    )
    return replace(step, **changes)  # type: ignore[arg-type]  # the record's own fields
