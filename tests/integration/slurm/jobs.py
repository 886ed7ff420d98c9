"""What the allocations of these tests are made for: sizes of their nodes, and jobs that a scripted model solves."""

from __future__ import annotations

import json

from tests.integration.slurm.cluster import ROOT
from trainer_client import JobRequest, LimitsRequest

START_S = 240.0
JOBS = 40
PROBLEMS = ROOT / "workers/handlers/math/problems/arithmetic.jsonl"
SMALL = ("--init", "1", "--run", "2", "--eval", "1")
"""Options of a node that two cores serve."""


def requests() -> list[JobRequest]:
    """Jobs that a scripted model solves in a second or two."""
    lines = [json.loads(line) for line in PROBLEMS.read_text(encoding="utf-8").splitlines() if line.strip()]
    rows = [line for line in lines if "question" in line][:JOBS]
    limits = LimitsRequest(max_turns=2, max_sampled_tokens=600)
    return [JobRequest(id=f"p-{number}", task="math", prompt=row, limits=limits) for number, row in enumerate(rows)]
