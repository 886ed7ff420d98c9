"""Reads what a manifest names: trajectories as rollouts, and the sizes that records did not tell.

A body that cannot be had, or must not be trained on, refuses the whole by the job's name. With `missing="skip"` it is left out and named
instead; nothing stands in its place, and what was agreed on by the manifest (advantages, weights, counts) stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypedDict, get_args

from pipeline.blobs import BlobError, BlobStore
from pipeline.codec import decode
from pipeline.errors import DamagedBody, InvalidRequest, NewerMessage
from pipeline.messages import Json, Prompt, Trajectory
from pipeline.segment_sizes import sizes_of
from pipeline.supervisor.loss_policy import Loss
from trainer_client.batches.advantages import Advantage, Overlong
from trainer_client.batches.experts import needed_store, with_experts
from trainer_client.batches.manifest import Entry, Manifest, ManifestGroup, ManifestMember
from trainer_client.batches.partition import check_shard, share_out
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, check_turns
from trainer_client.batches.step_advantages import GivenAdvantages, advantages_of
from trainer_client.errors import GONE, BodyMissing
from trainer_client.results import without_loss

Missing = Literal["raise", "skip"]
BODIES_AT_ONCE = 32
"""Bodies that are read only for their sizes are held so many at a time."""


class Bodies(Protocol):
    """Where bodies are read (`BodyStore`)."""

    async def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes under each key, in order; None where there are none."""
        ...


def check_reading(manifest: Manifest, missing: Missing) -> None:
    """Whether it is a manifest, and what is to be done about what cannot be had.

    Raises:
        InvalidRequest
    """
    if not isinstance(manifest, Manifest):
        raise InvalidRequest(f"expected a Manifest (of bytes: Manifest.from_bytes(raw)), got {type(manifest).__name__}", field="manifest")
    if missing not in get_args(Missing):
        raise InvalidRequest(f"expected raise or skip, got {missing!r}", field="missing")


@dataclass(frozen=True, slots=True)
class Found:
    """What was read of a manifest."""

    rollouts: Mapping[int, Rollout]
    """By place in the manifest's `entries`, in order. Members without a trajectory have none."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Jobs whose trajectory could not be had, and why."""


async def completed(manifest: Manifest, bodies: Bodies, *, missing: Missing = "raise") -> Manifest:
    """The manifest with the sizes of all trajectories: those that no record told are read.

    Args:
        missing: with `skip`, a member whose trajectory cannot be had counts as one without any.

    Raises:
        BodyMissing, DamagedBody, NewerMessage
    """
    unknown = [(group, member) for group, member in manifest.entries if member.attempt and not member.tokens]
    found: dict[str, ManifestMember] = {}
    for at in range(0, len(unknown), BODIES_AT_ONCE):
        part = unknown[at : at + BODIES_AT_ONCE]
        raws = await bodies.fetch([manifest.trajectory_key(*entry) for entry in part])
        for (group, member), raw in zip(part, raws, strict=True):
            try:
                found[group.job(member)] = _with_sizes(member, _decoded(manifest, (group, member), raw))
            except (BodyMissing, DamagedBody, NewerMessage):
                if missing == "raise":
                    raise
                found[group.job(member)] = replace(member, attempt=0)
    if not found:
        return manifest
    groups = (replace(group, members=tuple(found.get(group.job(member), member) for member in group.members)) for group in manifest.groups)
    return replace(manifest, groups=tuple(groups))


async def read_rollouts(
    manifest: Manifest,
    bodies: Bodies,
    *,
    places: Sequence[int] | None = None,
    advantages: Sequence[float] | None = None,
    prompts: bool = False,
    routed_experts: bool = False,
    images: bool = False,
    blobs: BlobStore | None = None,
    missing: Missing = "raise",
) -> Found:
    """Rollouts of a manifest.

    Args:
        places: which, by place in `manifest.entries`; None = all.
        advantages: of all entries; None = nobody asked for any.
        prompts: whether to read the prompts, too.
        routed_experts: whether to read those, too, from `blobs`.
        images: whether the model that is trained sees images, whose files are in `blobs`.
        missing: see the head of the file.

    Raises:
        BodyMissing: a trajectory or a prompt is gone: the step was acked.
        DamagedBody, NewerMessage: bytes that are none.
        BadTrajectory: it is not the one that the manifest tells of, or has no routed experts.
        BlobError: those cannot be had.
        InvalidRequest: there is no store to read them from, or a trajectory has images and nobody asked for those.
    """
    store = needed_store(blobs, "routed_experts") if routed_experts else None
    pictures = needed_store(blobs, "images") if images else None
    entries = manifest.entries
    wanted = [place for place in (range(len(entries)) if places is None else places) if entries[place][1].attempt]
    groups = list({entries[place][0].id: entries[place][0] for place in wanted}.values()) if prompts else []
    keys = [manifest.trajectory_key(*entries[place]) for place in wanted] + [manifest.prompt_key(group) for group in groups]
    raws = await bodies.fetch(keys)
    data = {group.id: _data(manifest, group, raw) for group, raw in zip(groups, raws[len(wanted) :], strict=True)}
    rollouts: dict[int, Rollout] = {}
    lost: dict[str, str] = {}
    for place, raw in zip(wanted, raws, strict=False):
        group, member = entries[place]
        try:
            trajectory = _decoded(manifest, entries[place], raw)
            _check(group.job(member), member, trajectory)
            if not images and any(segment.images for segment in trajectory.segments):
                raise InvalidRequest(
                    f"{group.job(member)} has images, without which its tokens are another prompt: say images=True, and show them to the "
                    "model that is trained (row.images)",
                    field="images",
                )
            rollout = _rollout(
                manifest, entries[place], trajectory, None if advantages is None else advantages[place], data.get(group.id, {}), pictures
            )
            rollouts[place] = rollout if store is None else await with_experts(rollout, store)
        except (BodyMissing, DamagedBody, NewerMessage, BadTrajectory, BlobError) as error:
            if missing == "raise":
                raise
            lost[group.job(member)] = str(error)
            continue
        await asyncio.sleep(0)  # whatever else is on the loop, such as signs of life of the run
    return Found(rollouts, lost)


class RolloutsHow(TypedDict, total=False):
    """How rollouts are taken: arguments of `take_rollouts` by name, as `Step.rollouts` explains them."""

    advantage: Advantage | GivenAdvantages | None
    overlong: Overlong | None
    prompts: bool
    routed_experts: bool
    images: bool
    missing: Missing


async def take_rollouts(
    manifest: Manifest,
    bodies: Bodies,
    *,
    shard: tuple[int, int] = (0, 1),
    advantage: Advantage | GivenAdvantages | None = None,
    overlong: Overlong | None = None,
    prompts: bool = False,
    routed_experts: bool = False,
    images: bool = False,
    blobs: BlobStore | None = None,
    missing: Missing = "raise",
) -> list[Rollout]:
    """Rollouts of one rank's share of a manifest, in its order; see `Step.rollouts`."""
    check_reading(manifest, missing)
    rank, world = check_shard(shard)
    if advantage is None and overlong is not None:
        raise InvalidRequest("expected an advantage beside it, since it shapes what those are made of", field="overlong")
    advantages = None if advantage is None else advantages_of(manifest, advantage, overlong)
    places = None if world == 1 else share_out(_shared_sizes(manifest), world)[rank]
    found = await read_rollouts(
        manifest,
        bodies,
        places=places,
        advantages=advantages,
        prompts=prompts,
        routed_experts=routed_experts,
        images=images,
        blobs=blobs,
        missing=missing,
    )
    return list(found.rollouts.values())


def _shared_sizes(manifest: Manifest) -> list[int]:
    """Tokens of each entry; a trajectory without any is somebody's, too."""
    return [max(1, sum(member.tokens)) if member.attempt else 0 for _, member in manifest.entries]


def _rollout(
    manifest: Manifest, entry: Entry, trajectory: Trajectory, advantage: float | None, data: Json, blobs: BlobStore | None
) -> Rollout:
    group, member = entry
    return Rollout(
        job=group.job(member),
        run=manifest.run,
        step=manifest.step,
        group=group.id,
        prompt_id=group.prompt_id,
        draw=group.draw,
        member=member.number,
        group_size=len(group.members),
        task=group.task,
        outcome=member.outcome,
        stop=member.stop,
        loss=member.loss,
        reward=member.reward,
        components=member.components,
        advantage=advantage,
        staleness=group.staleness,
        seconds=member.seconds,
        trajectory=trajectory if member.loss is Loss.TRAIN else without_loss(trajectory),
        data=data,
        blobs=blobs,
    )


def _decoded(manifest: Manifest, entry: Entry, raw: bytes | None) -> Trajectory:
    group, member = entry
    if raw is None:
        key = manifest.trajectory_key(group, member)
        raise BodyMissing(group.job(member), "trajectory", f"{key} is not in Redis: {GONE}")
    try:
        return decode(Trajectory, raw)
    except DamagedBody as error:
        raise DamagedBody(f"trajectory of {group.job(member)}: {error.why}", raw) from error


def _data(manifest: Manifest, group: ManifestGroup, raw: bytes | None) -> Json:
    if raw is None:
        raise BodyMissing(group.id, "prompt", f"{manifest.prompt_key(group)} is not in Redis: {GONE}")
    try:
        return decode(Prompt, raw).data
    except DamagedBody as error:
        raise DamagedBody(f"prompt of {group.id}: {error.why}", raw) from error


def _with_sizes(member: ManifestMember, trajectory: Trajectory) -> ManifestMember:
    sizes = sizes_of(trajectory)
    return replace(
        member,
        tokens=tuple(size.tokens for size in sizes),
        loss_tokens=tuple(size.loss_tokens for size in sizes),
        sampled_tokens=sum(int(segment.sampled_mask.sum()) for segment in trajectory.segments),
    )


def _check(job: str, member: ManifestMember, trajectory: Trajectory) -> None:
    """Weights and plans were made from the manifest's sizes: a rank that met others would train on what nobody agreed on."""
    found = [(size.tokens, size.loss_tokens) for size in sizes_of(trajectory)]
    told = list(zip(member.tokens, member.loss_tokens, strict=True))
    if len(found) != len(told):
        raise BadTrajectory(job, f"it has {len(found):,} segments, and the manifest tells of {len(told):,}")
    for number, (has, said) in enumerate(zip(found, told, strict=True)):
        if has != said:
            raise BadTrajectory(
                job,
                f"segment {number} has {has[0]:,} tokens, {has[1]:,} of them with a loss, and the manifest tells of {said[0]:,} and "
                f"{said[1]:,}",
            )
    check_turns(job, trajectory)


__all__ = ["Bodies", "Found", "Missing", "completed", "read_rollouts", "take_rollouts"]
