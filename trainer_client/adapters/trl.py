"""Rollouts for TRL: rows of `GRPOTrainer(rollout_func=...)` and samples of `AsyncGRPOTrainer(rollout_worker=...)`.

Made for TRL 1.16. The worker and the weight transfer that the asynchronous trainer is given are in `trl_worker.py`.

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import InvalidRequest
from trainer_client.adapters.demands import Several, advantage_of, text_rows
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row

if TYPE_CHECKING:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


def completions(rollouts: Sequence[Rollout], *, several: Several = "refuse") -> dict[str, list[object]]:
    """What a `rollout_func` returns, one row a rollout in their order: the prompt is what stands before the first sampled token.

    `env_mask` is 1 on what is trained, `logprobs` are 0 on what was not sampled. Beside them are `reward` and each of its components
    (`reward_<name>`), which TRL hands to reward functions: `reward_funcs=[reward]` takes what EVAL gave. A rollout without a sampled token
    is an empty completion after an empty prompt, and has no reward, so TRL leaves it out of its group's statistics.

    Args:
        several: TRL has one row a prompt here. With `last`, a trajectory of several segments is trained by its last one alone.

    Raises:
        InvalidRequest: a trajectory has several segments that were sampled.
        BadTrajectory: one must not be trained on.
    """
    names = sorted({name for rollout in rollouts for name in rollout.components})
    found: dict[str, list[object]] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "job")}
    found |= {f"reward_{name}": [] for name in names}
    for rollout in rollouts:
        rows = text_rows(rollout, "TRL")
        if len(rows) > 1 and several == "refuse":
            raise InvalidRequest(
                f"expected one segment, as TRL has one row a prompt, but {rollout.job} has {len(rows)}: train it with AsyncGRPOTrainer, "
                "which takes several rows, let its chat keep thoughts (keep_thinking), or say several='last'",
                field="rollouts",
            )
        prompt, completion, logprobs, mask = _split(rows[-1]) if rows else ([], [], [], [])
        found["prompt_ids"].append(prompt)
        found["completion_ids"].append(completion)
        found["logprobs"].append(logprobs)
        found["env_mask"].append(mask)
        found["reward"].append(rollout.reward if rows else None)
        found["job"].append(rollout.job)
        for name in names:
            found[f"reward_{name}"].append(rollout.components.get(name) if rows else None)
    return found


def reward(completions: Sequence[object], reward: Sequence[float | None], **_: object) -> list[float | None]:
    """A reward function for `GRPOTrainer` that takes the reward that came with the rollout; None leaves it out of the statistics."""
    return list(reward)


def samples(rollouts: Sequence[Rollout], *, versions: Mapping[int, int] | None = None) -> Iterator[RolloutSample]:
    """`sample_fields` as TRL's own type, or where TRL is not installed as objects with the same attributes."""
    try:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample as Sample
    except ModuleNotFoundError:
        Sample = SimpleNamespace
    for fields in sample_fields(rollouts, versions=versions):
        yield Sample(**fields)


def sample_fields(rollouts: Sequence[Rollout], *, versions: Mapping[int, int] | None = None) -> Iterator[dict[str, Any]]:
    """Training rows of the asynchronous trainer, one a segment, each with the advantage of its trajectory.

    `old_log_probs` are 0 where nothing is trained, as the trainer expects. All rows of a group have one `group_id`, a number made of its
    prompt's id, which is the same in every process.

    Args:
        rollouts: with advantages.
        versions: TRL's own version by the number of the policy version; None = they are the same. A row is as old as its oldest token.

    Raises:
        InvalidRequest: a rollout has no advantage.
        BadTrajectory: one must not be trained on.
    """
    for rollout in rollouts:
        advantage = advantage_of(rollout)
        messages = [{"role": message.role, "content": message.content} for message in rollout.trajectory.messages]
        answered = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        for row in text_rows(rollout, "TRL"):
            mask = row.loss_mask.astype(np.int64)
            sampled = row.versions[row.versions >= 0]
            oldest = int(sampled.min()) if len(sampled) else 0
            yield {
                "prompt": messages[:answered],
                "completion": messages[answered:],
                "input_ids": row.token_ids.astype(np.int64),
                "completion_mask": mask,
                "old_log_probs": row.logprobs * row.loss_mask,
                "advantage": advantage,
                "model_version": oldest if versions is None else versions.get(oldest, 0),
                "group_id": group_number(rollout.prompt_id),
                "metrics": _metrics(rollout),
            }


def group_number(prompt_id: str) -> int:
    """A number for a prompt, the same in every process: TRL counts groups by it."""
    return int.from_bytes(blake2b(prompt_id.encode(), digest_size=7).digest())


def _metrics(rollout: Rollout) -> dict[str, float]:
    turns = rollout.trajectory.turns
    calls = sum(turn.tool_calls for turn in turns)
    found = {"reward": rollout.reward, **{f"rewards/{name}": value for name, value in rollout.components.items()}}
    found["tools/call_frequency"] = float(calls)
    found["tools/failure_frequency"] = sum(turn.tool_errors for turn in turns) / calls if calls else 0.0
    return found


def _split(row: Row) -> tuple[list[int], list[int], list[float], list[int]]:
    at = row.prompt_tokens
    return row.token_ids[:at].tolist(), row.token_ids[at:].tolist(), row.logprobs[at:].tolist(), row.loss_mask[at:].tolist()


__all__ = ["completions", "group_number", "reward", "sample_fields", "samples"]
