"""Which grader gave a grade, as its record says it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def graded_by(task: str) -> str:
    """`task/VERSION` of a built-in task, whose grader has the version of this package; `source` where it is not installed."""
    try:
        return f"{task}/{version('rollstream')}"
    except PackageNotFoundError:
        return f"{task}/source"
