"""Advantages of all members of a manifest: the same on every rank, since nothing but the manifest goes in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipeline.errors import InvalidRequest
from trainer_client.batches.advantages import F64, Advantage, Overlong
from trainer_client.batches.manifest import Manifest, ManifestGroup

GivenAdvantages = Mapping[str, float]
"""By job: those of a trainer that has its own."""


def advantages_of(manifest: Manifest, advantage: Advantage | GivenAdvantages, overlong: Overlong | None = None) -> tuple[float, ...]:
    """One for each of `manifest.entries`, in order. Members without a trajectory count in their group like any other.

    Args:
        advantage: what makes them from the rewards of a group, or all of them by job.
        overlong: shapes the rewards before that.

    Raises:
        InvalidRequest: a reward or an advantage that is not finite, a job without one, or a shape that nothing would come of.
    """
    if isinstance(advantage, Mapping):
        if overlong is not None:
            raise InvalidRequest(
                "expected none beside advantages that are given by job: it shapes rewards before there are any", field="overlong"
            )
        missing = [group.job(member) for group, member in manifest.entries if group.job(member) not in advantage]
        if missing:
            raise InvalidRequest(f"expected one for each member of step {manifest.step}, got none for {missing[0]}", field="advantage")
        found = [float(advantage[group.job(member)]) for group, member in manifest.entries]
    else:
        if isinstance(advantage, type) or not callable(getattr(advantage, "of_group", None)):
            raise InvalidRequest(
                f"expected GRPO(), LeaveOneOut(), anything else with of_group(rewards), or a map by job, got {advantage!r}",
                field="advantage",
            )
        found = [value for group in manifest.groups if group.members for value in _of_group(group, advantage, overlong).tolist()]
    for (group, member), value in zip(manifest.entries, found, strict=True):
        if not math.isfinite(value):
            raise InvalidRequest(f"expected finite numbers, got {value} for {group.job(member)}", field="advantage")
    return tuple(found)


def _of_group(group: ManifestGroup, advantage: Advantage, overlong: Overlong | None) -> F64:
    rewards_M = np.array([member.reward for member in group.members], np.float64)
    if not np.isfinite(rewards_M).all():
        member = group.members[int(np.flatnonzero(~np.isfinite(rewards_M))[0])]
        raise InvalidRequest(f"expected finite numbers, got {member.reward} for {group.job(member)}", field="reward")
    if overlong is not None:
        rewards_M = overlong.shape(rewards_M, np.array([member.sampled_tokens for member in group.members], np.int64))
    found_M = np.asarray(advantage.of_group(rewards_M), np.float64)
    if found_M.shape != rewards_M.shape:
        raise InvalidRequest(
            f"expected one number a member, so {len(rewards_M)} for group {group.id}, got an array of shape {found_M.shape}",
            field="advantage",
        )
    return found_M


__all__ = ["GivenAdvantages", "advantages_of"]
