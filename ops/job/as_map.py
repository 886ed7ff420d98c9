"""The story of a job as plain values."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass

import numpy as np

from ops.job.story import JobStory


def story_as_map(story: JobStory) -> dict[str, object]:
    """For `--json`: records as maps, arrays as lists, a missing logprob as null."""
    return {
        "job": story.job,
        "state": story.state,
        "header": dict(story.header),
        "attempts": [asdict(attempt) for attempt in story.attempts],
        "timeline": [{"at": at, "what": what} for at, what in story.timeline()],
        "prompt": record_as_map(story.prompt),
        "trajectory": record_as_map(story.trajectory),
        "grade": record_as_map(story.grade),
        "attached": dict(story.attached),
        "sandbox": None if story.sandbox is None else story.sandbox.to_map(),
        "unreadable": list(story.unreadable),
    }


def record_as_map(record: object) -> object:
    """One record, or None where there is none."""
    if is_dataclass(record) and not isinstance(record, type):
        return {name: _arrays(value) for name, value in asdict(record).items()}
    return None


def _arrays(value: object) -> object:
    if isinstance(value, np.ndarray):
        return [None if isinstance(x, float) and x != x else x for x in value.tolist()]
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_arrays(item) for item in value]
    return value
