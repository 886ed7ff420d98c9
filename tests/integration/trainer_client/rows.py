"""The rows of a data set, and what the id of a job says: which row it is of, and which member of its group."""

from __future__ import annotations


def rows(count: int) -> list[dict[str, object]]:
    """So many questions, each another."""
    return [{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(count)]


def row_of(job: str) -> int:
    """The row whose prompt it has."""
    return int(job.split(".")[1].partition("-")[2])


def member_of(job: str) -> int:
    """Its number in its group."""
    return int(job.rpartition(".")[2])
