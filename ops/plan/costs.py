"""What jobs cost Redis, in numbers that were measured; docs/explanation/scaling.md has the conditions.

A trajectory is counted in bytes as it stands in Redis. It is written twice, as a journal while the job runs and as a body when RUN is done;
the costs of a byte hold both.
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.plan.settings import PlanSettings
from pipeline import leases
from pipeline.messages import JobTemplate, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class PerJob:
    """A cost with a part for each job, each turn, and each byte of the trajectory."""

    job: float
    turn: float
    byte: float

    def of(self, turns: float, trajectory_bytes: float) -> float:
        """For one job."""
        return self.job + self.turn * turns + self.byte * trajectory_bytes


CONDITIONS = "as measured on a quiet 2-core machine"
CPU_US = PerJob(job=780, turn=105, byte=0.0074)
"""Of a server with 500 jobs a second; with few, calls come one by one and a job costs about twice that."""
AOF_BYTES = PerJob(job=8100, turn=775, byte=2.05)
IN_BYTES = PerJob(job=2400, turn=630, byte=2.05)
OUT_BYTES = PerJob(job=2600, turn=80, byte=1.0)
"""To workers: EVAL reads each trajectory."""
RENEW_US = 7.0
"""Of one renewal of one lease (`rollstream bench leases`)."""
RENEWALS_A_LEASE = leases.RENEWALS_A_LEASE
LEASES_HELD = {Stage.INIT: 1, Stage.RUN: 2, Stage.EVAL: 1}
"""By a job that is worked on: its own and, in RUN, that of its place at a model server, which is renewed as often."""
REST_SHARE_A_PROCESS = 0.0003
"""Of a core: a worker process without jobs beats, renews its name, reads and looks."""
OPEN_JOB_BYTES = 4600.0
"""Memory of an open job without its trajectory: hash, stream entries, places in sets, its part of its group and prompt."""
RESERVED_BYTES = JobTemplate(task="").expected_bytes
"""As long as requests say nothing else."""
RESULT_BYTES = 2200.0
"""Memory of an ended job without its trajectory: hash, record, grade, its part of its group."""
RESERVE_BYTES = 300.0
"""Memory of a prompt that was fed, without its text."""
TOMBSTONE_BYTES, TOMBSTONE_S = 70.0, 2 * 86_400.0
"""Of an acknowledged group, kept for two days (docs/adr/0001-queue-protocol.md)."""
SERVER_BYTES = 8.0 * 1024**2
"""A server without keys, its clients and the compiled scripts."""
TOKEN_BYTES = 10.0
"""Of a trajectory: id, two masks, logprob."""
TEXT_BYTES_A_TOKEN = 4.0
"""Of the dialogue as text, which the trajectory has for people; about four letters a token."""
TURN_BYTES = 450.0
"""What a trajectory says of a turn."""
FULL_SHARE = 0.8
"""Of a core: beyond it scripts wait for each other, and a busy moment of the machine is a stall of the queue."""
ADMISSION_SHARE = 0.8
"""Of `maxmemory`: beyond it new jobs are refused (`memory_refusal` in pipeline/scripts/admission.lua)."""
AOF_COPIES = 3
"""The file has at most twice what it holds before it is rewritten, and the rewrite makes another copy."""


def trajectory_bytes(asked: PlanSettings) -> float:
    """Of one job, from its tokens."""
    tokens = asked.prompt_tokens + asked.turns * (asked.sampled_tokens + asked.observation_tokens)
    return tokens * (TOKEN_BYTES + TEXT_BYTES_A_TOKEN) + asked.turns * TURN_BYTES
