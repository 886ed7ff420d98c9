"""Records for tests: each builder gives a whole, valid one and takes only what matters to the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import numpy as np

from pipeline.codec import encode
from pipeline.keys import group_id
from pipeline.messages import (
    ChatMessage,
    Grade,
    JobSpec,
    JobTemplate,
    Outcome,
    Prompt,
    Sampling,
    Segment,
    SegmentSize,
    Settlement,
    StopReason,
    Trajectory,
    TrajectoryCounts,
    Turn,
    VersionSpan,
)
from pipeline.scripts.calls import Unit

A_RUN = "run1"
_Record = TypeVar("_Record")


def a_template(**changes: object) -> JobTemplate:
    """What the jobs of one feed have in common; an hour of wall time, small bodies."""
    return _changed(JobTemplate(task="math", wall_s=3600.0, expected_bytes=1024), changes)


def a_prompt(id: str = "e0-i0", **changes: object) -> Prompt:  # noqa: A002 -- the field's own name
    """One task instance with its gold answer."""
    return _changed(Prompt(id=id, data={"question": "What is 2 + 2?", "answer": "4"}), changes)


def a_job(run: str = A_RUN, prompt: str = "e0-i0", member: int = 0, **changes: object) -> JobSpec:
    """A member of a group, as a stage sees it in its first attempt."""
    group = group_id(run, prompt, 0)
    spec = JobSpec(
        job=f"{group}.{member}", run=run, group=group, member=member, draw=0, attempt=1, template=a_template(), prompt=a_prompt(prompt)
    )
    return _changed(spec, changes)


def a_group(run: str = A_RUN, prompt: str = "e0-i0", *, members: int = 8, draw: int = 0, version: str = "1.0") -> Unit:
    """A group as it is accepted; its members' jobs are `<id>.0` to `<id>.<members - 1>`."""
    return Unit(group_id(run, prompt, draw), members, prompt, draw, version, encode(a_prompt(prompt)))


def a_unit(run: str = A_RUN, prompt: str = "e0-i0", *, version: str = "1.0") -> Unit:
    """A single job as it is accepted; its id is the job's."""
    return Unit(group_id(run, prompt, 0), 0, prompt, 0, version, encode(a_prompt(prompt)))


def jobs_of(unit: Unit) -> list[str]:
    """The ids of a unit's jobs."""
    return [f"{unit.id}.{member}" for member in range(unit.members)] or [unit.id]


def a_segment(tokens: int = 8, sampled: int = 3, *, seed: int = 0, **changes: object) -> Segment:
    """A prompt followed by `sampled` sampled tokens."""
    random = np.random.default_rng(seed)
    mask = np.zeros(tokens, np.uint8)
    mask[tokens - sampled :] = 1
    logprobs = np.full(tokens, np.nan, np.float32)
    logprobs[mask == 1] = -random.exponential(size=sampled).astype(np.float32)
    segment = Segment(
        token_ids=random.integers(0, 150_000, tokens, dtype=np.uint32),
        sampled_mask=mask,
        loss_mask=mask.copy(),
        logprobs=logprobs,
        versions=(VersionSpan(version="1.0", start=tokens - sampled, end=tokens),) if sampled else (),
    )
    return _changed(segment, changes)


def a_turn(index: int = 0, **changes: object) -> Turn:
    """One model call of three tokens that ended by itself."""
    turn = Turn(
        index=index,
        segment=0,
        start=5,
        end=8,
        finish="stop",
        sampling=Sampling(),
        seed=7,
        server="http://127.0.0.1:8000",
        request_id=f"{A_RUN}.e0-i0.0.0:1:{index}",
        cached_tokens=-1,
        logprobs_mode="raw",
        template="t1",
        tokenizer="k1",
        model_s=0.25,
    )
    return _changed(turn, changes)


def a_trajectory(*, tokens: int = 8, n_turns: int = 1, answer: str = "\\boxed{4}", **changes: object) -> Trajectory:
    """One segment, whose turns ended by the model's own choice. With other `segments`, its turns are all that was sampled of the first."""
    segments = cast(Sequence[Segment], changes.get("segments", (a_segment(tokens),)))
    mask = segments[0].sampled_mask if segments else np.zeros(0, np.uint8)
    start, end = (int(mask.argmax()), len(mask) - int(mask[::-1].argmax())) if mask.any() else (len(mask), len(mask))
    trajectory = Trajectory(
        segments=tuple(segments),
        turns=tuple(a_turn(index, start=start, end=end) for index in range(n_turns if segments else 0)),
        stop=StopReason.FINISHED,
        messages=(ChatMessage(role="user", content="What is 2 + 2?"), ChatMessage(role="assistant", content=answer)),
        answer=answer,
    )
    return _changed(trajectory, changes)


def a_grade(reward: float = 1.0, **changes: object) -> Grade:
    """A verdict of the math grader."""
    return _changed(Grade(reward=reward, components={"score": reward}, grader="math 1", seconds=0.01), changes)


def a_settlement(reward: float | None = 1.0, **changes: object) -> Settlement:
    """The end of a job that was graded, or, without a reward, of one whose sandbox broke."""
    if reward is None:
        return _changed(Settlement(outcome=Outcome.INFRA_FAILURE, reason="sandbox: gone"), changes)
    settlement = Settlement(
        outcome=Outcome.OK,
        reward=reward,
        components={"score": reward},
        stop=StopReason.FINISHED.value,
        sampled_tokens=3,
        total_tokens=8,
        turns=1,
        first_version="1.0",
        last_version="1.0",
        segments=(SegmentSize(tokens=8, loss_tokens=3),),
        counts=TrajectoryCounts(neg_logprob=1.5, model_s=0.25),
    )
    return _changed(settlement, changes)


def _changed(record: _Record, changes: Mapping[str, object]) -> _Record:
    # the record's own fields: a name it does not have is an error of dataclasses.replace
    return dataclasses.replace(record, **changes) if changes else record  # type: ignore[type-var]


__all__ = [
    "A_RUN",
    "a_grade",
    "a_group",
    "a_job",
    "a_prompt",
    "a_segment",
    "a_settlement",
    "a_template",
    "a_trajectory",
    "a_turn",
    "a_unit",
    "jobs_of",
]
