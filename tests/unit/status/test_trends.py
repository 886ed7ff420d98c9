"""What growth over some minutes foretells, and what it does not (docs/adr/0028-status-and-doctor.md, 6)."""

from __future__ import annotations

import pytest

from ops.status.trends import hours_of
from pipeline.samples import Sample

MIN_MS = 60_000


def samples(minutes: int, bytes_a_minute: int) -> list[Sample]:
    """The newest first."""
    return [Sample(minute * MIN_MS, minute * bytes_a_minute, 0, (0, 0, 0)) for minute in range(minutes, -1, -1)]


@pytest.mark.parametrize(
    ("minutes", "left", "hours"),
    [
        (1, 600, None),  # a minute's growth is chance
        (5, 600, 1.0),
        (5, 1_300, None),  # 130 minutes: more than 24 times five
        (11, 1_300, 130 / 60),
    ],
)
def test_an_end_is_foretold_out_of_enough_minutes_and_for_a_multiple_of_them(minutes: int, left: int, hours: float | None) -> None:
    assert hours_of([samples(minutes, 10)], left, lambda sample: sample.used_bytes) == (None if hours is None else pytest.approx(hours))
