"""Rollouts for SkyRL: the `GeneratorOutput` that a generator of its trainers returns.

Made for SkyRL 0.4. Each segment that was sampled is one row; the prompt is what stands before its first sampled token, the response is the
rest, observations with mask 0 among it. With `generator.step_wise_trajectories=true` a trajectory may have several rows, which stand
together, and a group may be short: SkyRL takes the reward of a group from each trajectory's last row and gives every row the advantage of
its trajectory, as is meant here. Without it there is one row a prompt, and every group has n.

A trajectory without a sampled token gives no row, so SkyRL's baseline does not know of it.

Where rollouts were read with routed experts each row has those of all tokens but its last, in the dtypes that SkyRL takes.

Where rows have images, a processor of the caller's makes `pixel_values` and `image_grid_thw` of them, that of the model which is trained:

    def process(files):                                 # those of one row, in order
        images = [Image.open(io.BytesIO(file)) for file in files]
        made = processor.image_processor(images=images, return_tensors="pt")
        return made["pixel_values"], made["image_grid_thw"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidRequest
from trainer_client.adapters.demands import Several, finish_reason, have_experts, one_row_each
from trainer_client.batches.experts import experts_of
from trainer_client.batches.images import contents
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row, rows_of

if TYPE_CHECKING:
    from skyrl.train.generators.base import GeneratorOutput

Process = Callable[[list[bytes]], tuple[Any, Any]]
"""Files of a row's images to `pixel_values` and `image_grid_thw`; Any, as SkyRL takes tensors."""
OTHERWISE = "set generator.step_wise_trajectories=true and leave n out, or train complete_groups(rollouts, n=n)"


def generator_output(
    rollouts: Sequence[Rollout],
    *,
    n: int | None = None,
    several: Several = "refuse",
    metrics: Mapping[str, float] | None = None,
    process: Process | None = None,
) -> GeneratorOutput:
    """`output_fields` with SkyRL's own ids of trajectories."""
    from skyrl.train.generators.base import TrajectoryID

    fields = output_fields(rollouts, n=n, several=several, metrics=metrics, process=process)
    if fields["trajectory_ids"] is not None:
        fields["trajectory_ids"] = [TrajectoryID(**trajectory) for trajectory in fields["trajectory_ids"]]
    return cast("GeneratorOutput", fields)  # a dict with its keys


def output_fields(
    rollouts: Sequence[Rollout],
    *,
    n: int | None = None,
    several: Several = "refuse",
    metrics: Mapping[str, float] | None = None,
    process: Process | None = None,
) -> dict[str, Any]:
    """What a `GeneratorOutput` has, as plain lists of one entry a row, in the order of rollouts.

    `loss_masks` are 1 on what is trained, `rollout_logprobs` are 0 where nothing was sampled. The reward stands on the last row of its
    trajectory and is 0 on those before. An id of a trajectory is the group and the member's number.

    Args:
        rollouts: of one step; the members of a group stand together.
        n: rows a prompt, for trainers without step-wise trajectories; None = step-wise.
        several: with n, what becomes of trajectories of several segments.
        metrics: numbers that SkyRL logs (`rollout_metrics`), such as `step.metrics`.
        process: of the files of a row's images `pixel_values`, and `image_grid_thw` with a row for each image. It blocks, as reading does.

    Raises:
        InvalidRequest: with n, a trajectory has several segments or no sampled token, or a group is short; a row has images, and nobody
            says how they are processed.
        BadTrajectory: one must not be trained on.
        BlobError: an image cannot be had.
    """
    if n is None:
        rows = [row for rollout in rollouts for row in rows_of(rollout)]
    else:
        rows = one_row_each(rollouts, n=n, several=several, trainer="SkyRL", otherwise=OTHERWISE, images=True)
    last = [at + 1 == len(rows) or rows[at + 1].rollout is not row.rollout for at, row in enumerate(rows)]
    processed = [_processed(row, process) if row.images else (None, None) for row in rows]
    has_images = any(row.images for row in rows)
    return {
        "prompt_token_ids": [row.token_ids[: row.prompt_tokens].tolist() for row in rows],
        "response_ids": [row.token_ids[row.prompt_tokens :].tolist() for row in rows],
        "rewards": [row.rollout.reward if ends else 0.0 for row, ends in zip(rows, last, strict=True)],
        "loss_masks": [row.loss_mask[row.prompt_tokens :].tolist() for row in rows],
        "stop_reasons": [finish_reason(row.rollout) for row in rows],
        "rollout_metrics": None if metrics is None else dict(metrics),
        "rollout_logprobs": [row.logprobs[row.prompt_tokens :].tolist() for row in rows],
        "trajectory_ids": [_id(row) for row in rows] if n is None else None,
        "trajectory_generation_times": _run_seconds(rows),
        "trajectory_time_splits": {
            "llm": [sum(turn.model_s for turn in row.rollout.trajectory.turns) for row in rows],
            "env": [sum(turn.tools_s for turn in row.rollout.trajectory.turns) for row in rows],
        },
        "rollout_expert_indices": [_experts(row) for row in rows] if have_experts(rows) else None,
        "rollout_sample_support": None,
        "is_last_step": last if n is None else None,
        "env_metrics": [dict(row.rollout.components) for row in rows],
        "pixel_values": [pixels for pixels, _ in processed] if has_images else None,
        "image_grid_thw": [grid for _, grid in processed] if has_images else None,
    }


def uids(rollouts: Sequence[Rollout]) -> list[str]:
    """Of each row its group, by which SkyRL's trainers compare."""
    return [rollout.group for rollout in rollouts for _ in rows_of(rollout)]


def _id(row: Row) -> dict[str, Any]:
    return {"instance_id": row.rollout.group, "repetition_id": row.rollout.member}


def _experts(row: Row) -> NDArray[Any]:
    """Shape [T - 1, layers, top_k]. SkyRL knows no uint16."""
    found = experts_of(row)
    return found if found.dtype == np.uint8 else found.astype(np.int16 if not found.size or found.max() < 2**15 else np.int32)


def _processed(row: Row, process: Process | None) -> tuple[Any, Any]:
    """Pixels and grid of a row's images."""
    if process is None:
        raise InvalidRequest(f"{row.rollout.job} has images: expected how they become pixel_values: pass process", field="process")
    pixels, grid = process(contents(row.images))
    if len(grid) != len(row.images):
        raise InvalidRequest(
            f"expected image_grid_thw with a row for each of {len(row.images)} images of {row.rollout.job}, got {len(grid)}",
            field="process",
        )
    return pixels, grid


def _run_seconds(rows: Sequence[Row]) -> list[float] | None:
    """Seconds of RUN of each row's trajectory; None if one is not known, as SkyRL wants all or none."""
    found = [row.rollout.seconds.get("run") for row in rows]
    return None if None in found else cast("list[float]", found)  # none of them is None


__all__ = ["generator_output", "output_fields", "uids"]
