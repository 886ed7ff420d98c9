"""What one client has seen of ended jobs, summed up as their records come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pipeline.messages import JobResult


@dataclass(slots=True)
class SeenJobs:
    """Sums over the records that one client has read."""

    jobs: int = 0
    sampled_tokens: int = 0
    total_tokens: int = 0
    turns: int = 0
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, record: JobResult) -> None:
        """One more."""
        self.jobs += 1
        self.sampled_tokens += record.sampled_tokens
        self.total_tokens += record.total_tokens
        self.turns += record.turns
        for stage, seconds in record.seconds.items():
            self.seconds[stage] += seconds  # type: ignore[assignment]  # Counter is typed for whole numbers only
