"""A start that takes its time is waited for, and told of; one that hangs has an end."""

from __future__ import annotations

import pytest

from ops.slow_start import SlowStart, StartTooSlow


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_slow_start_is_told_of_each_ten_seconds_and_a_quick_one_never() -> None:
    clock, said = Clock(), list[str]()
    start = SlowStart("processes of a test", said.append, clock=clock)

    for clock.now_s in (1000.1, 1009.9):
        start.goes_on()
    assert said == []

    for clock.now_s in (1010.0, 1010.1, 1019.9, 1025.0, 1034.0, 1035.0):
        start.goes_on()

    assert [line.partition(" (load ")[0] for line in said] == [
        f"processes of a test are starting, for {waited} s now" for waited in (10, 25, 35)
    ]


def test_a_start_that_hangs_is_given_up() -> None:
    """Half a minute was the end of a demo on a machine where 22 processes waited for two cores."""
    clock = Clock()
    start = SlowStart("processes of a test", lambda line: None, limit_s=60.0, clock=clock)

    clock.now_s += 60.0
    start.goes_on()
    clock.now_s += 0.1

    with pytest.raises(StartTooSlow, match="processes of a test were not up within 60 s"):
        start.goes_on()
