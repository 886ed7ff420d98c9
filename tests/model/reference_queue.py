"""What the queue promises, as plain Python without Redis: each call of a script, and the word it must answer.

A job has one current entry (`entry` counts them) and one attempt; a token is what some worker once believed. Everything that is not
current is fenced, remembered (`again`) or without effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ORDER = ("init", "run", "eval")
NEXT = {"init": "run", "run": "eval"}
Name = tuple[str, str]
"""A worker: its stable name and its boot."""


@dataclass
class Job:
    """One job as it must be."""

    id: str
    unit: str
    state: Literal["waiting", "ready", "running", "delayed", "done"] = "waiting"
    stage: str = "init"
    attempt: int = 0
    failed: int = 0
    lost: int = 0
    cancelled: str = ""
    outcome: str = ""
    entry: int = 0
    """How many entries were made for it; the last one is current while it is ready or running."""
    delivered_to: str = ""
    owner: Name | None = None
    nonce: str = ""
    handed: dict[str, tuple[int, str]] = field(default_factory=dict)
    settled: int = 0
    node_epoch: str = ""
    """Epoch of the node that has its environment; empty = it runs anywhere."""
    turns: int = 0

    @property
    def lane(self) -> bool:
        """Whether its entry stands in the lane of its node."""
        return self.stage == "run" and bool(self.node_epoch)

    @property
    def outcome_of_cancel(self) -> str:
        return "expired" if self.cancelled == "deadline" else "cancelled"


@dataclass(frozen=True)
class Delivery:
    """An entry as some worker was given it."""

    job: str
    entry: int
    stage: str
    worker: Name


@dataclass(frozen=True)
class Token:
    """An attempt as some worker believes to hold it."""

    job: str
    entry: int
    attempt: int
    stage: str
    worker: Name


@dataclass
class ReferenceQueue:
    """All jobs of one run."""

    max_failed: int
    max_lost: int
    salvages: bool
    quota: int
    window: int
    jobs: dict[str, Job] = field(default_factory=dict)
    """In the order they were accepted."""
    acked: set[str] = field(default_factory=set)
    """Units whose results were let go."""
    closed: bool = False
    """The run was cancelled."""
    names: dict[str, str] = field(default_factory=dict)
    """Which boot holds a name."""
    node_epoch: str = ""
    """Epoch of the node's lane; empty = nobody reads it."""

    # ---- what is counted

    @property
    def in_flight(self) -> int:
        return sum(job.state not in ("waiting", "done") for job in self.jobs.values())

    @property
    def unclaimed(self) -> int:
        """Entries in INIT's stream that nobody was given."""
        return sum(job.state == "ready" and job.stage == "init" and not job.delivered_to for job in self.jobs.values())

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "waiting"]

    # ---- what happens to a job

    def admit(self, job: Job) -> None:
        self._ready(job, "init")

    def _ready(self, job: Job, stage: str) -> None:
        job.state, job.stage, job.owner, job.delivered_to = "ready", stage, None, ""
        job.entry += 1

    def _end(self, job: Job, outcome: str) -> None:
        job.state, job.outcome, job.owner, job.delivered_to = "done", outcome, None, ""

    def _requeue(self, job: Job, stage: str, *, delayed: bool) -> None:
        if stage == "init":
            job.node_epoch = ""
        if delayed:
            job.state, job.stage, job.owner, job.delivered_to = "delayed", stage, None, ""
        else:
            self._ready(job, stage)

    def _retry_stage(self, job: Job) -> str:
        return "init" if job.lane else job.stage

    def is_current(self, token: Token) -> bool:
        """Whether this attempt is the one that may act."""
        job = self.jobs.get(token.job)
        return job is not None and job.state == "running" and job.attempt == token.attempt and job.entry == token.entry

    # ---- the scripts

    def begin(self, delivery: Delivery, nonce: str) -> tuple[str, int]:
        """The state it answers, and the attempt."""
        consumer, boot = delivery.worker
        if self.names.setdefault(consumer, boot) != boot:
            return "usurped", 0
        job = self.jobs.get(delivery.job)
        if job is None or job.entry != delivery.entry or job.state not in ("ready", "running"):
            return "gone", 0
        if job.state == "running":
            return ("ok", job.attempt) if (job.owner, job.nonce) == (delivery.worker, nonce) else ("held", 0)
        if job.cancelled:
            self._end(job, job.outcome_of_cancel)
            return "ended", 0
        job.state, job.owner, job.nonce, job.turns = "running", delivery.worker, nonce, 0
        job.attempt += 1
        return "ok", job.attempt

    def hand_off(self, token: Token, epoch: str) -> str:
        job = self.jobs.get(token.job)
        if job is None or not self.is_current(token):
            attempt, word = job.handed.get(token.stage, (0, "")) if job else (0, "")
            return word if attempt == token.attempt else "fenced"
        if job.cancelled:
            return f"cx:{job.cancelled}"
        if epoch and self.node_epoch != epoch:
            self._requeue(job, "init", delayed=True)
            job.handed[token.stage] = (token.attempt, "node_gone")
            return "node_gone"
        job.node_epoch = epoch
        job.handed[token.stage] = (token.attempt, "again")
        self._ready(job, NEXT[token.stage])
        return "ok"

    def settle(self, token: Token, outcome: str) -> str:
        job = self.jobs.get(token.job)
        if job is None or not self.is_current(token):
            return "again" if job is not None and job.settled == token.attempt else "fenced"
        job.settled = token.attempt
        word = f"cx:{job.cancelled}" if job.cancelled else "ok"
        self._end(job, job.outcome_of_cancel if job.cancelled else outcome)
        return word

    def give_up(self, token: Token, kind: str, *, delayed: bool) -> str:
        job = self.jobs.get(token.job)
        if job is None or not self.is_current(token):
            return "fenced"
        if job.cancelled:
            self._end(job, job.outcome_of_cancel)
            return f"cx:{job.cancelled}"
        if kind == "back":
            self._requeue(job, self._retry_stage(job), delayed=False)
            return "back"
        if kind == "lost":
            job.lost += 1
        elif kind == "failed":
            job.failed += 1
        if kind == "dead" or job.failed > self.max_failed or job.lost > self.max_lost:
            self._end(job, "infra_failure")
            return "dead"
        self._requeue(job, self._retry_stage(job), delayed=delayed)
        return "retry"

    def renew(self, worker: Name, token: Token) -> str:
        job = self.jobs.get(token.job)
        if job is None or not self.is_current(token) or job.owner != worker:
            return "0"
        return job.cancelled or "1"

    def holds_name(self, worker: Name) -> bool:
        """Whether a worker has its name; one that nobody has is taken."""
        return self.names.setdefault(worker[0], worker[1]) == worker[1]

    def journal(self, token: Token, index: int) -> str:
        job = self.jobs.get(token.job)
        if job is None or job.state != "running" or job.attempt != token.attempt:
            return "0"
        is_kept = index <= job.turns
        if index == job.turns:
            job.turns += 1
        return job.cancelled or ("1" if is_kept else "0")

    def recover(self, known: Token | Delivery, successor: Name | None, *, delayed: bool) -> str:
        """By a janitor after the lease ran out, or, with `successor`, by the boot that has the name now."""
        job = self.jobs.get(known.job)
        if successor and self.names.get(successor[0], successor[1]) != successor[1]:
            return "usurped"
        is_current = job is not None and job.entry == known.entry and job.state in ("ready", "running")
        if job is None or not is_current:
            return "stale" if successor else "fresh"
        if not successor and not job.delivered_to:
            return "fresh"
        if successor and job.owner == successor:
            return "fresh"
        if job.state == "ready":
            self._requeue(job, job.stage, delayed=False)
            return "ready"
        if successor and job.owner and job.owner[0] != successor[0]:
            job.delivered_to = job.owner[0]
            return "fresh"
        if job.cancelled:
            self._end(job, job.outcome_of_cancel)
            return "ended"
        if job.stage == "run" and self.salvages and job.turns:
            job.node_epoch = ""
            self._ready(job, "eval")
            return "salvaged"
        job.lost += 1
        if job.lost > self.max_lost:
            self._end(job, "infra_failure")
            return "dead"
        self._requeue(job, self._retry_stage(job), delayed=delayed and successor is None)
        return "lost"

    def promote(self) -> int:
        due = [job for job in self.jobs.values() if job.state == "delayed"]
        for job in due:
            self._ready(job, job.stage)
        return len(due)

    def cancel(self, name: str, reason: str) -> str:
        job = self.jobs.get(name)
        if job is None:
            return "unknown"
        if job.state == "done":
            return "done"
        job.cancelled = job.cancelled or reason
        if job.state == "running":
            return "running"
        self._end(job, job.outcome_of_cancel)
        return "settled"

    def expire(self, name: str) -> str:
        """The wall deadline of a job passed."""
        return self.cancel(name, "deadline")

    def sweep(self) -> int:
        """What stands in the lane of an epoch that is over goes back to INIT."""
        stranded = [job for job in self.jobs.values() if job.state == "ready" and job.lane and job.node_epoch != self.node_epoch]
        for job in stranded:
            self._requeue(job, "init", delayed=False)
        return len(stranded)

    def lose_stream(self, stage: str) -> int:
        """The common stream of a stage was deleted, and reconciliation came by."""
        lost = [job for job in self.jobs.values() if job.state in ("ready", "running") and job.stage == stage and not job.lane]
        for job in lost:
            self._requeue(job, self._retry_stage(job), delayed=False)
        return len(lost)

    def ack(self, unit: str) -> None:
        self.acked.add(unit)
        for job in [job for job in self.jobs.values() if job.unit == unit]:
            del self.jobs[job.id]
