"""Rollouts for rLLM: an `Episode` of one `Trajectory` of `Step`s.

Made for the fields that rLLM had in autumn 2026; its training types are installed from its repository alone. A step is a stretch of tokens
that is trained: its prompt is all that stands before it in its segment, its response is the stretch. Steps have no mask, so what was
sampled and is not trained is in prompts alone; a trajectory that is masked as a whole has no step, and its reward.

rLLM compares trajectories, not steps, so several segments and short groups are as good as any. Prompts repeat what stood before: a segment
of T tokens in k stretches is some k * T / 2 numbers here, since that is how rLLM takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.messages import StopReason
from trainer_client.adapters.demands import text_rows
from trainer_client.batches.rollout import Rollout

if TYPE_CHECKING:
    from rllm.agents.agent import Episode

ENDED = {
    StopReason.FINISHED.value: "env_done",
    StopReason.TURNS.value: "max_turns_exceeded",
    StopReason.TOKENS.value: "max_response_length_exceeded",
    StopReason.CONTEXT.value: "max_response_length_exceeded",
    StopReason.TIME.value: "timeout",
}
"""rLLM's word for why an episode ended; any other is `unknown`."""


def episodes(rollouts: Sequence[Rollout]) -> list[Episode]:
    """`episode_fields` as rLLM's own types."""
    from rllm.agents.agent import Episode, Step, Trajectory
    from rllm.workflows.workflow import TerminationReason

    found = []
    for fields in episode_fields(rollouts):
        trajectories = [Trajectory(**{**each, "steps": [Step(**step) for step in each["steps"]]}) for each in fields["trajectories"]]
        found.append(
            Episode(**{**fields, "trajectories": trajectories, "termination_reason": TerminationReason(fields["termination_reason"])})
        )
    return found


def episode_fields(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """What an `Episode` of each rollout has, as plain values with those of its trajectory and steps in them.

    Its id is `<group>:<member>`, by which rLLM makes groups. Steps have the rollout's advantage if it has one, and the number of the oldest
    version that sampled in them. One without a sampled token has no step.

    Raises:
        BadTrajectory: one must not be trained on.
    """
    found = []
    for rollout in rollouts:
        steps = _steps(rollout)
        trajectory = {
            "uid": rollout.job,
            "name": rollout.task,
            "task": dict(rollout.data),
            "steps": steps,
            "reward": rollout.reward,
            "info": {"stop": rollout.stop},
        }
        found.append(
            {
                "id": f"{rollout.group.replace(':', '-')}:{rollout.member}",
                "task": dict(rollout.data),
                "termination_reason": ENDED.get(rollout.stop, "unknown"),
                "is_correct": rollout.reward > 0,
                "trajectories": [trajectory],
                "metrics": dict(rollout.components),
                "info": {"job": rollout.job},
            }
        )
    return found


def _steps(rollout: Rollout) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in text_rows(rollout, "rLLM"):
        ids, logprobs, versions = row.token_ids.tolist(), row.logprobs, row.versions
        edges = np.flatnonzero(np.diff(row.loss_mask, prepend=0, append=0)).tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            oldest = int(versions[start:end].min())
            found.append(
                {
                    "prompt_ids": ids[:start],
                    "response_ids": ids[start:end],
                    "logprobs": logprobs[start:end].tolist(),
                    "info": {"segment": row.number},
                    "reward": 0.0,
                    "done": False,
                    "advantage": rollout.advantage,
                    "weight_version": oldest if oldest >= 0 else None,
                }
            )
    if found:
        found[-1] |= {"reward": rollout.reward, "done": True}
    return found


__all__ = ["episode_fields", "episodes"]
