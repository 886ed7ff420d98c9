"""One job before and after: which way its reward went, and what else changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from pipeline.messages import Grade, StopReason


class Change(StrEnum):
    """What became of a job."""

    SAME = "same"
    """Reward and components are what they were."""
    UP = "up"
    """A higher reward."""
    DOWN = "down"
    """A lower one."""
    PARTS = "parts"
    """The same reward with other components."""
    FIRST = "first"
    """It had no grade before."""
    ERROR = "error"
    """It could not be judged now."""
    SKIPPED = "skipped"
    """What judging it takes is not there."""


DIFFERENT = frozenset((Change.UP, Change.DOWN, Change.PARTS, Change.FIRST))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a judging found, as far as it is compared."""

    reward: float | None = None
    """None = there was none."""
    components: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    grader: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, grade: Grade) -> Found:
        """Of a grade. Its reason is what the grader calls so, else its verdict."""
        reason = grade.details.get("reason") or grade.details.get("verdict") or ""
        if grade.details.get("stop") == StopReason.GRADER_BROKEN.value:
            reason = f"{StopReason.GRADER_BROKEN.value}: {reason}"
        return cls(
            reward=grade.reward, components=dict(grade.components), reason=str(reason), grader=grade.grader, inputs=dict(grade.inputs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """One job, judged again or not."""

    job: str
    task: str = ""
    outcome: str = ""
    """It ended as that then."""
    before: Found = field(default_factory=Found)
    after: Found = field(default_factory=Found)
    error: str = ""
    """Why it could not be judged now."""
    skipped: str = ""
    """Why it was not tried."""
    seconds: float = 0.0

    @property
    def change(self) -> Change:
        if self.skipped:
            return Change.SKIPPED
        if self.error or self.after.reward is None:
            return Change.ERROR
        if self.before.reward is None:
            return Change.FIRST
        if not math.isclose(self.after.reward, self.before.reward, rel_tol=0, abs_tol=1e-9):
            return Change.UP if self.after.reward > self.before.reward else Change.DOWN
        return Change.SAME if self.after.components == self.before.components else Change.PARTS

    @property
    def has_another_reason(self) -> bool:
        return self.change not in (Change.ERROR, Change.SKIPPED, Change.FIRST) and self.after.reason != self.before.reason

    @property
    def has_other_inputs(self) -> bool:
        """Whether another answer was judged than before: then no difference says anything of the grader."""
        return bool(self.before.inputs and self.after.inputs) and self.before.inputs != self.after.inputs

    def as_map(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "change": self.change.value, "other_reason": self.has_another_reason, "other_inputs": self.has_other_inputs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Jobs that were not tried for one reason."""

    why: str
    """With an ellipsis for the name of the job."""
    count: int
    example: str
    """One of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of many jobs."""

    jobs: int
    counts: Mapping[str, int]
    """Jobs by change; all of them are named."""
    other_reasons: int
    other_inputs: int
    mean_before: float | None
    """Of those that have both rewards; None = there is none."""
    mean_after: float | None
    graders_before: tuple[str, ...]
    graders_after: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()
    """By reason, the most frequent first."""

    @classmethod
    def of(cls, found: Iterable[Regraded]) -> Summary:
        jobs = list(found)
        counted = Counter(job.change for job in jobs)
        both = [
            (job.before.reward, job.after.reward)
            for job in jobs
            if job.before.reward is not None and job.after.reward is not None and job.change not in (Change.ERROR, Change.SKIPPED)
        ]
        return cls(
            jobs=len(jobs),
            counts={change.value: counted[change] for change in Change},
            other_reasons=sum(job.has_another_reason for job in jobs),
            other_inputs=sum(job.has_other_inputs for job in jobs),
            mean_before=math.fsum(before for before, _ in both) / len(both) if both else None,
            mean_after=math.fsum(after for _, after in both) / len(both) if both else None,
            graders_before=tuple(sorted({job.before.grader for job in jobs} - {""})),
            graders_after=tuple(sorted({job.after.grader for job in jobs} - {""})),
            skipped=_by_reason([job for job in jobs if job.change is Change.SKIPPED]),
        )

    def as_map(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    @property
    def judged(self) -> int:
        return self.jobs - self.counts[Change.ERROR.value] - self.counts[Change.SKIPPED.value]

    @property
    def is_different(self) -> bool:
        return any(self.counts[change.value] for change in DIFFERENT)


def _by_reason(skipped: Iterable[Regraded]) -> tuple[Skipped, ...]:
    jobs: dict[str, list[str]] = {}
    for one in skipped:
        jobs.setdefault(one.skipped.replace(repr(one.job), "...").replace(one.job, "..."), []).append(one.job)
    reasons = [Skipped(why=why, count=len(those), example=those[0]) for why, those in jobs.items()]
    return tuple(sorted(reasons, key=lambda reason: -reason.count))
