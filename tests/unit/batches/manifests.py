"""Manifests without a run, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.messages import Outcome
from pipeline.supervisor.loss_policy import Loss
from trainer_client.batches.manifest import Manifest, ManifestGroup, ManifestMember


def a_member(
    number: int = 0, *, tokens: Sequence[int] = (8,), reward: float = 1.0, loss: Loss = Loss.TRAIN, attempt: int = 2
) -> ManifestMember:
    """A member of whose tokens half have a loss."""
    return ManifestMember(
        number=number,
        attempt=attempt,
        outcome=Outcome.OK,
        stop="finished",
        loss=loss,
        reward=reward,
        components={"score": reward},
        sampled_tokens=sum(count // 2 for count in tokens),
        tokens=tuple(tokens),
        loss_tokens=tuple(count // 2 for count in tokens),
        seconds={"init": 0.25, "run": 12.125, "eval": 1.5, "total": 14.0},
    )


def a_group_of(members: Sequence[ManifestMember], row: int = 0) -> ManifestGroup:
    """A group of these."""
    return ManifestGroup(id=f"r.e0-{row}.0", prompt_id=f"e0-{row}", draw=0, task="math", staleness=1, members=tuple(members))


def a_manifest(*groups: Sequence[ManifestMember], step: int = 3) -> Manifest:
    """A step of these groups."""
    return Manifest(run="r", step=step, tag="{rs:0}", groups=tuple(a_group_of(members, row) for row, members in enumerate(groups)))
