"""Why a run, a step or a job waits: a closed list of causes, and a reason, which is a cause with what was seen and what to do.

For people, and for programs that only pass on what people are to read: nothing decides on a cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """In the order in which they are to be seen to: what explains others stands before them."""

    REDIS_AWAY = "redis_away"
    """Redis does not answer."""
    RUN_UNKNOWN = "run_unknown"
    """Redis does not know the run."""
    RUN_TAKEN = "run_taken"
    """Another trainer has the run."""
    RUN_CLOSED = "run_closed"
    RUN_CANCELLED = "run_cancelled"
    RUN_PAUSED = "run_paused"
    """Nothing of it is admitted."""
    JOB_UNKNOWN = "job_unknown"
    """Redis does not know the job."""
    NO_WORKER = "no_worker"
    """A stage in which jobs of the run stand has no live worker."""
    WORKERS_IDLE = "workers_idle"
    """It has some, and each says why it claims nothing."""
    NO_CAPABILITY = "no_capability"
    """No live worker serves the capability that jobs of the run need."""
    SERVERS_PAUSED = "servers_paused"
    """No model call begins: an update goes on, the engines are away, or each engine is paused."""
    NO_SERVER = "no_server"
    """The run has no model server."""
    SERVER_DOWN = "server_down"
    """None of its servers answers, or takes new jobs."""
    SERVER_UNSYNCED = "server_unsynced"
    """None of its servers holds weights that the run allows."""
    QUEUE_FULL = "queue_full"
    """No new work is taken: Redis is at its memory bound, or the queue of the run at its own."""
    GROUPS_BROKEN = "groups_broken"
    """Infrastructure breaks group after group."""
    NO_SUPERVISOR = "no_supervisor"
    """Nobody accounts what closes, or draws prompts."""
    POLICY_UNKNOWN = "policy_unknown"
    """No live supervisor can judge the groups of the step."""
    AWAITING_REWARDS = "awaiting_rewards"
    """Jobs wait for a reward from outside."""
    HELD_FOR_HOOK = "held_for_hook"
    """Groups wait for the trainer's hook."""
    RECORDS_MISSING = "records_missing"
    """The step is complete, and the stream does not have all of its records."""
    RESERVE_EMPTY = "reserve_empty"
    """No prompt is there to draw."""
    PROMPTS_ENDED = "prompts_ended"
    """All prompts were fed and are done with."""
    GROUPS_DROPPED = "groups_dropped"
    """Groups of the step are dropped: too few of their members came through."""
    GROUPS_TOO_OLD = "groups_too_old"
    """Groups are staler than the step allows."""
    RESULTS_UNREAD = "results_unread"
    """So much is not acked that less is launched."""
    QUOTA_REACHED = "quota_reached"
    """As many jobs of the run are in flight as it may have."""
    FAILED_BEFORE = "failed_before"
    """The job failed or was lost, and is tried again."""
    NO_OPEN_STEP = "no_open_step"
    """Its trainer asks for no further step."""
    IN_PROGRESS = "in_progress"
    """How far it is: nothing stands in the way."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something waits."""

    cause: Cause
    what: str
    """What was seen, a sentence without its full stop."""
    do: str = ""
    """What to do about it; empty = wait."""

    def __str__(self) -> str:
        return f"{self.what}: {self.do}" if self.do else self.what


_RANK = {cause: rank for rank, cause in enumerate(Cause)}


def in_order(reasons: Iterable[Reason]) -> list[Reason]:
    """What to see to first, first. Those of one cause stay as they were."""
    return sorted(reasons, key=lambda reason: _RANK[reason.cause])
