"""What several trainers ask of rollouts: an advantage each; one row a trajectory and n of them a group; routed experts of all or none; no
images, where an adapter has no place for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from pipeline.errors import InvalidRequest
from pipeline.messages import StopReason
from trainer_client.batches.experts import form_of
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row, rows_of

Several = Literal["refuse", "last"]
"""What becomes of a trajectory of several segments where there is one row for each: an error, or its last segment alone."""
CUT_OFF = (StopReason.TOKENS.value, StopReason.CONTEXT.value)


def advantage_of(rollout: Rollout) -> float:
    """The advantage of a rollout, for trainers that take it from us.

    Raises:
        InvalidRequest: it has none.
    """
    if rollout.advantage is None:
        why = f"expected rollouts with advantages, got {rollout.job} without: ask for rollouts(advantage=GRPO())"
        raise InvalidRequest(why, field="rollouts")
    return rollout.advantage


def was_cut_off(rollout: Rollout) -> bool:
    """Whether a bound on tokens ended it, which trainers call `truncated`, or a finish reason of `length`."""
    return rollout.stop in CUT_OFF


def finish_reason(rollout: Rollout) -> str:
    """In the words of inference engines where they have one (`stop`, `length`), else our stop reason."""
    if was_cut_off(rollout):
        return "length"
    return "stop" if rollout.stop == StopReason.FINISHED.value else rollout.stop


def text_rows(rollout: Rollout, trainer: str) -> list[Row]:
    """The rows of a rollout, for trainers that are shown no images from here.

    Raises:
        InvalidRequest: it has some; without them its tokens are another prompt.
        BadTrajectory: it must not be trained on.
    """
    rows = rows_of(rollout)
    if any(row.segment.images for row in rows):
        raise InvalidRequest(
            f"expected rollouts without images, as the adapter of {trainer} has no place for them, but {rollout.job} has some: take "
            "step.batch(images=True), or the adapter of SkyRL or of verl's agent loops",
            field="rollouts",
        )
    return rows


def one_row_each(rollouts: Sequence[Rollout], *, n: int, several: Several, trainer: str, otherwise: str, images: bool = False) -> list[Row]:
    """The one row of each rollout, for trainers that take the statistics of a group from every n rows.

    Args:
        n: members of each group; the members of a group stand together.
        several: what becomes of trajectories of several segments.
        trainer: for the sentence of an error.
        otherwise: how that trainer can be fed with what does not fit here.
        images: whether the adapter shows them.

    Raises:
        InvalidRequest: a trajectory has several segments or no sampled token, or a group is short: n rows of two groups would be
            taken for one.
        BadTrajectory: one must not be trained on.
    """
    found = []
    for group, members in groupby(rollouts, key=lambda rollout: rollout.group):
        size = 0
        for rollout in members:
            rows = rows_of(rollout) if images else text_rows(rollout, trainer)
            if not rows:
                raise _refused(trainer, n, f"{rollout.job} has no sampled token", otherwise)
            if len(rows) > 1 and several == "refuse":
                raise _refused(trainer, n, f"{rollout.job} has {len(rows)} segments", f"say several='last', or {otherwise}")
            found.append(rows[-1])
            size += 1
        if size != n:
            raise _refused(trainer, n, f"group {group} has {size} trajectories", otherwise)
    return found


def have_experts(rows: Sequence[Row]) -> bool:
    """Whether rows were read with the experts that their tokens were routed to.

    Raises:
        InvalidRequest: some were and some were not.
        BadTrajectory: they are of two models.
    """
    return any(row.experts is not None for row in rows) and form_of(rows) is not None


def complete_groups(rollouts: Sequence[Rollout], *, n: int) -> list[Rollout]:
    """The rollouts of those groups that have n members here, each of which sampled something; the others are left out whole."""
    found = []
    for _, members in groupby(rollouts, key=lambda rollout: rollout.group):
        group = list(members)
        if len(group) == n and all(any(segment.sampled_mask.any() for segment in each.trajectory.segments) for each in group):
            found += group
    return found


def _refused(trainer: str, n: int, what: str, instead: str) -> InvalidRequest:
    asked = f"expected one row a trajectory and {n} trajectories a group, as {trainer} takes statistics of every {n} rows"
    return InvalidRequest(f"{asked}, but {what}: {instead}", field="rollouts")


__all__ = ["Several", "advantage_of", "complete_groups", "finish_reason", "have_experts", "one_row_each", "text_rows", "was_cut_off"]
