"""The manifest of a step: all that is known of it without its trajectories, the same on every rank, byte for byte.

Invariants:
  1. Who gets which rollout, advantages, the number of microbatches and of loss tokens follow from a manifest and plain arguments alone.
     Ranks that hold the same manifest agree on them without a word.
  2. The sizes of every trajectory stand in it: the rank that makes it reads those that a record did not tell.
  3. Whoever changes rewards or leaves groups out does it here, before advantages, and passes the changed manifest on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pipeline.codec import decode, encode
from pipeline.errors import InvalidRequest
from pipeline.keys import Keys, job_id
from pipeline.messages import Outcome, Stage
from pipeline.supervisor.loss_policy import Loss
from trainer_client.batches.loss_weights import StepTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestMember:
    """One member that counts in the statistics of its group."""

    number: int
    """In the group, from 0 on; numbers of members that do not count are left out."""
    attempt: int
    """Attempt whose trajectory is kept; 0 = it has none."""
    outcome: Outcome
    stop: str
    """Why the agent's turns ended (`StopReason`)."""
    loss: Loss
    """What the step says of that reason."""
    reward: float
    """The unshaped task score; 0 for what failed by the model's doing and got none."""
    components: Mapping[str, float] = field(default_factory=dict)
    sampled_tokens: int = 0
    tokens: tuple[int, ...] = ()
    """Of each segment."""
    loss_tokens: tuple[int, ...] = ()
    """Of each segment, before `loss`."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds a stage, and `total`."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.loss_tokens) or any(not 0 <= loss <= of for of, loss in zip(self.tokens, self.loss_tokens)):  # noqa: B905  # compared
            raise ValueError(f"tokens of segments {self.tokens[:8]} and those with a loss {self.loss_tokens[:8]} do not fit together")
        if min(self.number, self.attempt, self.sampled_tokens) < 0:
            raise ValueError(f"number {self.number}, attempt {self.attempt}, sampled tokens {self.sampled_tokens}: none is below 0")

    @property
    def trained_tokens(self) -> int:
        """Tokens that have a loss."""
        return sum(self.loss_tokens) if self.loss is Loss.TRAIN else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestGroup:
    """One group to train."""

    id: str
    prompt_id: str
    draw: int
    task: str
    staleness: int | None
    """Updates between the oldest version that sampled it and the run's at the hand-over; None = not known."""
    members: tuple[ManifestMember, ...]
    """Those in its statistics, by number."""

    def job(self, member: ManifestMember) -> str:
        """Id of a member's job."""
        return job_id(self.id, member.number)


Entry = tuple[ManifestGroup, ManifestMember]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A step, or a part of one."""

    run: str
    step: int
    tag: str
    """Hash tag of the run's keys: where its trajectories are."""
    groups: tuple[ManifestGroup, ...]

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """What `to_bytes` made, here or in another process.

        Raises:
            DamagedBody: no manifest.
            NewerMessage: made by a version of Rollstream with another major version of messages.
            InvalidRequest: no bytes.
        """
        if not isinstance(raw, bytes):
            raise InvalidRequest(f"expected the bytes that manifest.to_bytes() gave, got {type(raw).__name__}", field="raw")
        return decode(cls, raw)

    def to_bytes(self) -> bytes:
        """To be sent to other ranks; some 200 bytes a member."""
        return encode(self)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All members, each with its group, in order. Plans speak of rollouts by their place in this."""
        return tuple((group, member) for group in self.groups for member in group.members)

    @property
    def totals(self) -> StepTotals:
        """What has a loss, over all of it."""
        trained = [member.trained_tokens for _, member in self.entries]
        return StepTotals(loss_tokens=sum(trained), trajectories=sum(1 for tokens in trained if tokens))

    def trajectory_key(self, group: ManifestGroup, member: ManifestMember) -> str:
        """Where a member's trajectory is."""
        return Keys(self.tag).body(group.job(member), member.attempt, Stage.RUN.value)

    def prompt_key(self, group: ManifestGroup) -> str:
        """Where a group's prompt is."""
        return Keys(self.tag).prompt(group.id)

    def with_rewards(self, reward: Callable[[ManifestGroup, ManifestMember], float]) -> Manifest:
        """The same with rewards of the trainer's own making, such as the score less a penalty for length.

        Raises:
            InvalidRequest: a reward that is not finite.
        """

        def changed(group: ManifestGroup, member: ManifestMember) -> ManifestMember:
            value = float(reward(group, member))
            if not math.isfinite(value):
                raise InvalidRequest(f"expected a finite number for {group.job(member)}, got {value}", field="reward")
            return replace(member, reward=value)

        return self._of(replace(group, members=tuple(changed(group, member) for member in group.members)) for group in self.groups)

    def without(self, groups: Collection[str]) -> Manifest:
        """The same without these groups."""
        return self._of(group for group in self.groups if group.id not in groups)

    def parts(self, count: int) -> list[Manifest]:
        """Cut into so many parts, for as many optimizer steps: whole groups, in order, as equal in number as can be.

        Raises:
            InvalidRequest: fewer groups than parts.
        """
        if not 1 <= count <= len(self.groups):
            raise InvalidRequest(f"expected 1 to {len(self.groups)} parts, the groups of step {self.step}, got {count}", field="count")
        cuts = [len(self.groups) * at // count for at in range(count + 1)]
        return [self._of(self.groups[start:end]) for start, end in pairwise(cuts)]

    def _of(self, groups: Iterable[ManifestGroup]) -> Manifest:
        return replace(self, groups=tuple(groups))


__all__ = ["Entry", "Manifest", "ManifestGroup", "ManifestMember"]
