"""Rates of `rollstream top` are told from two looks, and are never made up."""

from __future__ import annotations

import pytest

from ops.look import Look, StageLook
from ops.top.history import KEPT, History, sparkline
from ops.top.over_time import short
from pipeline.messages import Stage


def a_look(ended: int, waiting: int = 0) -> Look:
    return Look(stages={stage: StageLook(ended=ended, waiting=waiting) for stage in Stage})


def values(history: History) -> dict[str, tuple[float | None, ...]]:
    return {row.name: row.values for row in history.rows()}


def test_a_rate_is_growth_by_the_time_between_two_looks() -> None:
    history = History()

    for at_s, ended in ((100.0, 40), (102.0, 50), (102.5, 50)):
        history.add(a_look(ended, waiting=2), at_s=at_s)

    assert values(history)["run jobs/s"] == (None, 5.0, 0.0)
    assert values(history)["backlog"] == (6, 6, 6)
    assert values(history)["tokens/s"] == (None, 0.0, 0.0)


def test_a_count_that_fell_leaves_a_gap() -> None:
    """A run was forgotten with its counters: that is no throughput below zero."""
    history = History()

    for at_s, ended in ((1.0, 40), (2.0, 5), (3.0, 8)):
        history.add(a_look(ended), at_s=at_s)

    assert values(history)["eval jobs/s"] == (None, None, 3.0)


def test_the_last_looks_are_kept() -> None:
    history = History()

    for number in range(KEPT + 5):
        history.add(a_look(number * number), at_s=float(number))

    assert len(values(history)["init jobs/s"]) == KEPT
    assert values(history)["init jobs/s"][-1] == 2 * (KEPT + 4) - 1


@pytest.mark.parametrize(
    ("row", "drawn"),
    [
        ((), ""),
        ((None, 0.0, 0.0), " ▁▁"),
        ((0.0, 0.001, 4.0, 8.0), "▁▂▅█"),
        ((7.0, None, 7.0), "█ █"),
    ],
)
def test_a_row_is_drawn_from_0_to_its_largest_value(row: tuple[float | None, ...], drawn: str) -> None:
    assert sparkline(row) == drawn


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (0.25, "0.2"), (99.94, "99.9"), (9999.0, "9999"), (12345.0, "12.3k"), (2.5e6, "2.5M"), (7e11, "700.0G")],
)
def test_a_number_has_six_columns(value: float | None, text: str) -> None:
    assert short(value) == text
    assert len(text) <= 6
