"""Steps as a trainer sees them: their groups, members, rewards and numbers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from pipeline.codec import decode
from pipeline.keys import Keys
from pipeline.messages import JobResult, Outcome, Prompt, Trajectory
from pipeline.supervisor.loss_policy import Loss, loss_of
from pipeline.supervisor.staleness import Version, age, is_too_old, oldest_of
from pipeline.supervisor.step_spec import StepSpec
from trainer_client.bodies import BodyStore
from trainer_client.errors import GONE, BodyMissing
from trainer_client.on_loop import OnLoop
from trainer_client.records import GroupRecord, StepRecord
from trainer_client.results import Result, fetch_trajectories

if TYPE_CHECKING:  # loaded when a step's trajectories are asked for
    from trainer_client.batches.batch import Batch, BatchHow
    from trainer_client.batches.manifest import Manifest, ManifestGroup, ManifestMember
    from trainer_client.batches.reading import Missing, RolloutsHow
    from trainer_client.batches.rollout import Rollout


class Group(OnLoop):
    """One group of a step: the members that count, in their order, and the others."""

    def __init__(
        self, record: GroupRecord, results: Sequence[Result], bodies: BodyStore, keys: Keys, spec: StepSpec, version: Version | None
    ) -> None:
        self.record = record
        self.members = tuple(result for result in results if _counts(record, result))
        """Members in the statistics of the group, by number."""
        self.others = tuple(result for result in results if not _counts(record, result))
        """Members outside the statistics: broken by infrastructure, cancelled, expired, excluded."""
        for result in self.members:
            result.loss = loss_of(result.record.stop, spec.loss)
        for result in self.others:
            result.loss = Loss.EXCLUDE
        oldest = oldest_of(result.record.first_version for result in self.members)
        self.staleness = age(oldest, version)
        """Updates between the oldest version that sampled one of `members` and the run's at the hand-over of the step; None = unknown."""
        self.is_stale = is_too_old(oldest, version, spec.max_staleness)
        """Whether that is more than the step's `max_staleness`."""
        self.tag = keys.tag
        """Hash tag of the run's keys."""
        self._bodies = bodies
        self._prompt_key = keys.prompt(record.group)

    @property
    def id(self) -> str:
        return self.record.group

    @property
    def prompt_id(self) -> str:
        """Id of the prompt that it sampled: `e<epoch>-<row>`."""
        return self.record.prompt

    @property
    def rewards(self) -> tuple[float, ...]:
        """Unshaped task score of each of `members`; what failed by the model's doing and got no reward has 0."""
        return tuple(0.0 if result.reward is None else result.reward for result in self.members)

    async def prompt(self) -> Prompt:
        """The task instance.

        Raises:
            BodyMissing: the step was acked.
            DamagedBody: the bytes are no prompt.
        """
        raw = (await self._bodies.fetch([self._prompt_key]))[0]
        if raw is None:
            raise BodyMissing(self.id, "prompt", f"{self._prompt_key} is not in Redis: {GONE}")
        return decode(Prompt, raw)

    async def fetch(self) -> None:
        """Brings the bytes of all trajectories in few calls."""
        await fetch_trajectories(self.members, self._bodies)

    async def trajectories(self) -> list[Trajectory]:
        """What each of `members` produced.

        Raises:
            DamagedBody, BodyMissing: for the first member whose trajectory cannot be had; `member.trajectory()` gives the others.
        """
        await self.fetch()
        return [await result.trajectory() for result in self.members]

    async def rollouts(self, **how: Unpack[RolloutsHow]) -> list[Rollout]:
        """What each of `members` did, as plain values; see `Step.rollouts`. A group has the same advantages alone as in its step."""
        from trainer_client.batches.manifest import Manifest
        from trainer_client.batches.reading import completed, take_rollouts

        manifest = Manifest(run=self.record.run, step=self.record.step or 0, tag=self.tag, groups=(manifest_group(self),))
        whole = await completed(manifest, self._bodies, missing=how.get("missing", "raise"))
        return await take_rollouts(whole, self._bodies, blobs=self._bodies.blobs, **how)

    def __repr__(self) -> str:
        return f"<Group {self.id} {self.record.verdict} rewards={list(self.rewards)}>"


class Step(OnLoop):
    """A step that is complete, or ended short since the prompts did."""

    def __init__(
        self,
        record: StepRecord,
        groups: Sequence[Group],
        kept: Sequence[Group],
        accounted: Sequence[GroupRecord],
        everyone: Mapping[str, Sequence[JobResult]],
        bodies: BodyStore,
        ack: Callable[[int], Awaitable[None]],
        *,
        waited_s: float = 0.0,
    ) -> None:
        self.record = record
        self.groups = tuple(groups)
        """Groups to train, in the order they were accounted."""
        self.kept_groups = tuple(kept)
        """Filtered groups whose trajectories can be looked at until the ack: the share that the request's `keep_filtered` asks for."""
        self.waited_s = waited_s
        """How long the trainer waited for it, from asking to having it."""
        self._accounted = accounted
        self._everyone = everyone
        self._bodies = bodies
        self._ack = ack
        self._manifest: Manifest | None = None

    @property
    def all_groups(self) -> tuple[GroupRecord, ...]:
        """Records of all closed groups that are accounted to this step, trained or not: verdict, why, rewards by component, tokens,
        versions, draw, age. Complete when the step is given out; they stay after the ack."""
        return tuple(self._accounted)

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def is_short(self) -> bool:
        """Whether it has fewer groups than its target, since no prompt was left."""
        return self.record.is_short

    @property
    def metrics(self) -> dict[str, float]:
        """Flat numbers, the same names in every step (`step_metrics`)."""
        from trainer_client.step_metrics import step_metrics

        return step_metrics(
            self.record,
            counted=self.all_groups,
            everyone=self._everyone,
            trained=[result.record for group in self.groups for result in group.members],
            rewards=[reward for group in self.groups for reward in group.rewards],
            missing=sum(len(group.others) for group in self.groups),
            staleness=[group.staleness for group in self.groups],
            waited_s=self.waited_s,
        )

    async def fetch(self) -> None:
        """Brings the bytes of all trajectories of the step in few calls, so that no later one waits."""
        await fetch_trajectories([result for group in self.groups for result in group.members], self._bodies)

    async def manifest(self, *, missing: Missing = "raise") -> Manifest:
        """All that is known of the step without its trajectories, to be sent to other ranks (`to_bytes`). They read what is theirs with
        a `BodyReader`, until the ack.

        Args:
            missing: with `skip`, a member whose trajectory is gone and whose size no record told counts as one without any.

        Raises:
            BodyMissing, DamagedBody: of such a member.
        """
        from trainer_client.batches.manifest import Manifest
        from trainer_client.batches.reading import completed

        if self._manifest is None:
            known = Manifest(
                run=self.record.run,
                step=self.index,
                tag=self.groups[0].tag if self.groups else "",
                groups=tuple(manifest_group(group) for group in self.groups),
            )
            self._manifest = await completed(known, self._bodies, missing=missing)
        return self._manifest

    async def batch(self, *, shard: tuple[int, int] = (0, 1), **how: Unpack[BatchHow]) -> Batch:
        """The share of one rank as microbatches of arrays; see `batch_of` for the arguments and errors.

        The other ranks of several make theirs from `manifest` and a `BodyReader`, with the same arguments.

        Args:
            shard: rank and number of ranks; it reads the trajectories of its own share only.
        """
        from trainer_client.batches.batch import batch_of

        manifest = await self.manifest(missing=how.get("missing", "raise"))
        return await batch_of(manifest, self._bodies, shard=shard, blobs=self._bodies.blobs, **how)

    async def rollouts(self, *, shard: tuple[int, int] = (0, 1), **how: Unpack[RolloutsHow]) -> list[Rollout]:
        """The members of all groups as plain values, in order: what adapters take. One without a trajectory gives none.

        Args:
            shard: rank and number of ranks; of several, each gets its own share by tokens and reads no more than that.
            advantage: makes the advantages of each group, or all of them by job; None = none.
            overlong: shapes the rewards before the advantages.
            prompts: whether each has its prompt's row (`data`), which is read, too.
            routed_experts: whether each has the experts that its tokens were routed to (`experts_of`), read from the store of blobs.
            images: whether the model that is trained sees images; without, a step that has some is refused.
            missing: with `skip`, a member whose trajectory cannot be had gives no rollout.

        Raises:
            BodyMissing, DamagedBody: a trajectory cannot be had.
            InvalidRequest
        """
        from trainer_client.batches.reading import take_rollouts

        manifest = await self.manifest(missing=how.get("missing", "raise"))
        return await take_rollouts(manifest, self._bodies, shard=shard, blobs=self._bodies.blobs, **how)

    async def ack(self) -> None:
        """Says that the trainer has what it wants of this step **and of all before it**: bodies and records go. Again: nothing happens."""
        await self._ack(self.index)

    def __repr__(self) -> str:
        return f"<Step {self.index} groups={len(self.groups)}/{self.record.target}{' short' if self.is_short else ''}>"


def manifest_group(group: Group) -> ManifestGroup:
    """A group as manifests have it: from its records alone."""
    from trainer_client.batches.manifest import ManifestGroup

    return ManifestGroup(
        id=group.id,
        prompt_id=group.prompt_id,
        draw=group.record.draw,
        task=group.members[0].record.task if group.members else "",
        staleness=group.staleness,
        members=tuple(_manifest_member(result, reward) for result, reward in zip(group.members, group.rewards, strict=True)),
    )


def _manifest_member(result: Result, reward: float) -> ManifestMember:
    from trainer_client.batches.manifest import ManifestMember

    record = result.record
    return ManifestMember(
        number=record.member,
        attempt=record.run_attempt,
        outcome=record.outcome,
        stop=record.stop,
        loss=result.loss,
        reward=reward,
        components=record.components,
        sampled_tokens=record.sampled_tokens,
        tokens=tuple(size.tokens for size in record.segments),
        loss_tokens=tuple(size.loss_tokens for size in record.segments),
        seconds=record.seconds,
    )


def _counts(record: GroupRecord, result: Result) -> bool:
    """Whether a member is in the statistics: what the supervisor said, else what its outcome says."""
    member = result.record.member
    if member < len(record.values):
        return record.values[member] is not None
    return result.outcome in (Outcome.OK, Outcome.MODEL_FAILURE)
