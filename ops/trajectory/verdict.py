"""What `rollstream trajectory check` finds: each record judged by itself, and all of them against a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.messages import Turn
from pipeline.trajectory_file import TrajectoryRecord
from workers.agent.invariants import Fault, faults_of
from workers.llm.logprob_distance import Distances, Tolerance, beyond
from workers.llm.ratio import ratio_bias
from workers.llm.teacher_forcing import TeacherForcing, distances


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One record, judged."""

    name: str
    unreadable: str = ""
    """Why there is nothing to judge; empty when there is."""
    facts: Mapping[str, str] = field(default_factory=dict)
    ended: bool = True
    faults: Sequence[Fault] = ()
    biased: Mapping[str, int] = field(default_factory=dict)
    """Why a trainer's ratio would be biased, and over how many turns."""
    segments: int = 0
    turns: int = 0
    tokens: int = 0
    sampled: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    """Sampled tokens by the version that sampled them."""
    unproved_turns: int = 0
    """Turns without a checksum: nothing proves that their ids are those that were sent and sampled."""
    distances: Distances | None = None
    """From a server's logprobs; None when none was asked."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Sampled tokens that could not be compared, by why."""

    @property
    def is_broken(self) -> bool:
        """Whether it breaks a promise, its distance from a server's logprobs apart."""
        return bool(self.unreadable or self.faults)


def judge(record: TrajectoryRecord) -> Verdict:
    """A record by itself."""
    trajectory = record.trajectory
    faults = faults_of(trajectory)
    biased = Counter(bias for turn in trajectory.turns if (bias := _bias(turn)))
    versions: Counter[str] = Counter()
    for segment in trajectory.segments:
        for span in segment.versions:
            versions[span.version] += max(0, span.end - span.start)
    return Verdict(
        name=record.name,
        facts=record.facts,
        ended=record.ended,
        faults=faults,
        biased=biased,
        segments=len(trajectory.segments),
        turns=len(trajectory.turns),
        tokens=sum(len(segment.token_ids) for segment in trajectory.segments),
        sampled=sum(int((segment.sampled_mask == 1).sum()) for segment in trajectory.segments),
        versions=versions,
        unproved_turns=sum(turn.checksum < 0 for turn in trajectory.turns),
    )


async def compare(forcing: TeacherForcing, record: TrajectoryRecord, verdict: Verdict) -> Verdict:
    """The verdict with the distances from a server's logprobs. A broken record is not compared: its ids and masks are not to be believed.

    Raises:
        ModelError
    """
    if verdict.is_broken:
        return verdict
    recomputed = await forcing.recompute(record.trajectory)
    return replace(verdict, distances=distances(record.trajectory, recomputed), skipped=recomputed.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Who recomputed."""

    url: str
    model: str
    server_version: str
    logprobs_mode: str
    version: str
    """Label of its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """All that was found."""

    verdicts: Sequence[Verdict]
    server: Server | None = None
    tolerance: Tolerance | None = None

    @property
    def broken(self) -> int:
        """How many records break a promise."""
        return sum(verdict.is_broken for verdict in self.verdicts)

    @property
    def distances(self) -> Distances:
        """Of all records together."""
        total = Distances.none()
        for verdict in self.verdicts:
            total += verdict.distances or Distances.none()
        return total

    @property
    def skipped(self) -> Mapping[str, int]:
        """Tokens that could not be compared, by why."""
        return sum((Counter(verdict.skipped) for verdict in self.verdicts), Counter[str]())

    @property
    def complaints(self) -> Sequence[str]:
        """What is wrong with the logprobs, over all records; empty when nothing is or nobody was asked."""
        if self.server is None or self.tolerance is None:
            return ()
        found = self.distances
        if not len(found.all_D) and any(verdict.sampled and not verdict.is_broken for verdict in self.verdicts):
            whys = ", ".join(f"{count} tokens: {why}" for why, count in self.skipped.items())
            return (f"no token could be compared with a server that holds {self.server.version or 'weights without a label'!r} ({whys})",)
        return beyond(found, self.tolerance)

    @property
    def is_fine(self) -> bool:
        """Whether every record keeps its promises and all logprobs are within the tolerance."""
        return not self.broken and not self.complaints


def _bias(turn: Turn) -> str:
    match turn.logprobs_mode:
        case "raw" | "scaled" | "processed" as mode:
            return ratio_bias(mode, turn.sampling)
        case _:
            return ""  # a fault, and told as one
