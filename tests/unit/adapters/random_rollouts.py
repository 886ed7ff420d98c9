"""Rollouts as a run may bring them, drawn at random, for the round trips of adapters.

Among 200 of them are trajectories of several segments, forked ones and others whose segments share nothing; turns with observations between
them and at the end; groups that are short of members; members that are masked as a whole; versions that change within a turn; temperatures
that differ; prompts that are empty; ids that need more than 16 bits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from pipeline.blobs import expert_rows
from pipeline.messages import ChatMessage, Outcome, Sampling, Segment, StopReason, Trajectory, Turn, VersionSpan
from pipeline.supervisor.loss_policy import DEFAULT_LOSS, Loss
from pipeline.testing.builders import a_turn
from trainer_client.batches.advantages import GRPO
from trainer_client.batches.rollout import Rollout

N = 8
"""Members of a group that is not short."""


def random_rollouts(count: int = 200, *, seed: int = 0, max_tokens: int = 120) -> list[Rollout]:
    """Rollouts of one step, with the members of a group together and advantages in them.

    Args:
        count: at least so many; the last group may bring some more.
        seed: of all that is drawn.
        max_tokens: of one segment.
    """
    draw = random.Random(seed)
    rollouts: list[Rollout] = []
    while len(rollouts) < count:
        rollouts += _group(draw, len(rollouts), max_tokens)
    return rollouts


@cache
def drawn_rollouts() -> tuple[Rollout, ...]:
    """The 200 of all tests of adapters, drawn once a process; nobody writes into their arrays."""
    return tuple(random_rollouts())


def single_rows() -> list[Rollout]:
    """Those of them that are one row, each a group of its own: for targets of one row a trajectory."""
    found = []
    for rollout in drawn_rollouts():
        if len(rollout.trajectory.segments) == 1:
            found.append(replace(rollout, group=rollout.job, group_size=1))
    return found


def routed(rollouts: Sequence[Rollout], *, experts: int = 512, layers: int = 2, top_k: int = 3) -> list[Rollout]:
    """Rollouts with experts of at least all tokens before the last sampled one; numbers of more than 256 need 16 bits."""
    draw = np.random.default_rng(0)
    found = []
    for rollout in rollouts:
        arrays = []
        for segment in rollout.trajectory.segments:
            known = int(np.flatnonzero(segment.sampled_mask)[-1])
            rows = int(draw.integers(known, len(segment.token_ids)))
            arrays.append(expert_rows(draw.integers(0, experts, (rows, layers, top_k)), experts))
        found.append(replace(rollout, experts=tuple(arrays)))
    return found


def _group(draw: random.Random, row: int, max_tokens: int) -> list[Rollout]:
    members = sorted(draw.sample(range(N), draw.choice([N, N, N, N - 1, N - 2, 2, 1])))
    rewards = [draw.choice([0.0, 1.0, 0.25, draw.gauss(0, 3)]) for _ in members]
    advantages = GRPO(std=draw.random() < 0.5).of_group(np.array(rewards))
    prompt_id = f"e0-i{row}"
    found = []
    for member, reward, advantage in zip(members, rewards, advantages, strict=True):
        trajectory = _trajectory(draw, max_tokens)
        loss = DEFAULT_LOSS.get(trajectory.stop, Loss.TRAIN)
        found.append(
            Rollout(
                job=f"run1.{prompt_id}.0.{member}",
                run="run1",
                step=3,
                group=f"run1.{prompt_id}.0",
                prompt_id=prompt_id,
                draw=0,
                member=member,
                group_size=len(members),
                task="math",
                outcome=Outcome.OK if trajectory.stop is StopReason.FINISHED else Outcome.MODEL_FAILURE,
                stop=trajectory.stop.value,
                loss=loss,
                reward=reward,
                components={"score": reward, "format": float(draw.random() < 0.5)},
                advantage=float(advantage),
                staleness=draw.choice([None, 0, 1]),
                seconds={"init": 0.1, "run": 2.0, "eval": 0.2, "total": 2.5},
                trajectory=trajectory if loss is Loss.TRAIN else _masked(trajectory),
                data={"question": f"What is {row} + {row}?", "answer": str(2 * row)},
            )
        )
    return found


def _trajectory(draw: random.Random, max_tokens: int) -> Trajectory:
    segments: list[Segment] = []
    turns: list[Turn] = []
    for number in range(draw.choice([1, 1, 1, 2, 4])):
        before = segments[-1] if segments else None
        forks = before is not None and draw.random() < 0.5
        fork = draw.randint(1, len(before.token_ids)) if before is not None and forks else 0
        segment, stretches = _segment(draw, before if forks else None, fork, max_tokens, number)
        for start, end in stretches:
            sampling = Sampling(temperature=draw.choice([1.0, 1.0, 0.7]))
            turns.append(
                a_turn(len(turns), segment=number, start=start, end=end, sampling=sampling, tool_calls=draw.choice([0, 1]), tools_s=0.125)
            )
        segments.append(segment)
    stop = draw.choice([StopReason.FINISHED, StopReason.FINISHED, StopReason.FINISHED, StopReason.TOKENS, StopReason.STUCK])
    messages = (ChatMessage(role="user", content="What is it?"), ChatMessage(role="assistant", content="It is."))
    return Trajectory(segments=tuple(segments), turns=tuple(turns), stop=stop, messages=messages, answer="It is.")


def _segment(draw: random.Random, parent: Segment | None, fork: int, max_tokens: int, number: int) -> tuple[Segment, list[tuple[int, int]]]:
    """A segment and where it was sampled: a prompt, then turns with observations between them."""
    prompt = fork + draw.choice([0 if number == 0 and draw.random() < 0.1 else 3, 17])
    mask = [0] * prompt
    stretches = []
    for turn in range(draw.randint(1, 4)):
        if turn:
            mask += [0] * draw.randint(1, 12)
        sampled = draw.randint(1, max(1, max_tokens // 6))
        stretches.append((len(mask), len(mask) + sampled))
        mask += [1] * sampled
    mask += [0] * draw.choice([0, 0, 5])  # an observation that nothing was sampled after
    tokens = len(mask)
    random_numbers = np.random.default_rng(draw.getrandbits(32))
    ids = random_numbers.integers(0, 150_000, tokens, dtype=np.uint32)
    if parent is not None:
        ids[:fork] = parent.token_ids[:fork]
    sampled_mask = np.array(mask, np.uint8)
    logprobs = np.full(tokens, np.nan, np.float32)
    logprobs[sampled_mask == 1] = -random_numbers.exponential(size=int(sampled_mask.sum())).astype(np.float32)
    spans = []
    for start, end in stretches:
        middle = draw.randint(start, end)
        spans += [VersionSpan(version="1.4", start=start, end=middle), VersionSpan(version="1.5", start=middle, end=end)]
    segment = Segment(
        token_ids=ids,
        sampled_mask=sampled_mask,
        loss_mask=sampled_mask.copy(),
        logprobs=logprobs,
        versions=tuple(span for span in spans if span.end > span.start),
        began="start" if number == 0 else "thinking_dropped",
        parent=number - 1 if parent is not None else -1,
        fork=fork,
    )
    return segment, stretches


def _masked(trajectory: Trajectory) -> Trajectory:
    """As the client gives a member that is masked by its stop reason."""
    return replace(
        trajectory, segments=tuple(replace(segment, loss_mask=np.zeros_like(segment.loss_mask)) for segment in trajectory.segments)
    )


__all__ = ["N", "drawn_rollouts", "random_rollouts", "routed", "single_rows"]
