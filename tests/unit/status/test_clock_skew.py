"""How far a clock is ahead of that of Redis, told no larger than the time of the question proves."""

from __future__ import annotations

import pytest

from pipeline.clock_skew import clock_skew_ms


@pytest.mark.parametrize(
    ("asked_s", "redis_s", "answered_s", "skew_ms"),
    [
        (100.0, 100.2, 100.5, 0),
        (100.0, 97.0, 100.5, 3000),
        (100.0, 104.5, 100.5, -4000),
        (100.0, 100.0, 100.0, 0),
    ],
    ids=["within the question", "ahead", "behind", "at once"],
)
def test_a_slow_answer_is_no_skew(asked_s: float, redis_s: float, answered_s: float, skew_ms: int) -> None:
    assert clock_skew_ms(asked_s, redis_s, answered_s) == skew_ms
