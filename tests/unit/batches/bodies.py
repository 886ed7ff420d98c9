"""Trajectories without Redis, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pipeline.codec import encode
from pipeline.messages import Trajectory
from pipeline.testing.builders import a_segment, a_trajectory
from trainer_client.batches.manifest import Manifest, ManifestGroup, ManifestMember


@dataclass
class HeldBodies:
    """Bodies in memory, and how many bytes of them were read."""

    held: dict[str, bytes] = field(default_factory=dict)
    bytes_read: int = 0

    async def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        found = [self.held.get(key) for key in keys]
        self.bytes_read += sum(len(raw) for raw in found if raw is not None)
        return found


def made_for(group: ManifestGroup, member: ManifestMember) -> Trajectory:
    """The trajectory that a manifest's member tells of; other arrays for each job and segment."""
    seed = 1000 * int(group.prompt_id.rpartition("-")[2]) + 10 * member.number
    sizes = enumerate(zip(member.tokens, member.loss_tokens, strict=True))
    return a_trajectory(segments=tuple(a_segment(tokens, loss, seed=seed + at) for at, (tokens, loss) in sizes))


def bodies_of(manifest: Manifest, make: Callable[[ManifestGroup, ManifestMember], Trajectory] = made_for) -> dict[str, bytes]:
    """Bytes of all its trajectories, by key."""
    return {manifest.trajectory_key(group, member): encode(make(group, member)) for group, member in manifest.entries if member.attempt}


def with_logprob(trajectory: Trajectory, token: int, logprob: float) -> Trajectory:
    """With another logprob at a token of the first segment."""
    first = trajectory.segments[0]
    logprobs = first.logprobs.copy()
    logprobs[token] = logprob
    return replace(trajectory, segments=(replace(first, logprobs=logprobs), *trajectory.segments[1:]))
