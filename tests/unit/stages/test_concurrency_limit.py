"""How the limit of a process follows what is seen of the servers. No time passes: looks are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.stages.concurrency import Change, ConcurrencyLimit, Everybody, ServerLoad
from workers.stages.concurrency.control import LONGEST_WINDOW_S, STALE_S

CALL_S = 10.0


def a_load(server: str = "a", *, running: int = 16, waiting: int = 0, kv: float = 0.3, age_s: float = 0.5) -> ServerLoad:
    return ServerLoad(server=server, running=running, waiting=waiting, kv=kv, age_s=age_s)


class Looks:
    """A limit, and looks at it a second apart."""

    def __init__(self, low: int = 1, high: int = 64) -> None:
        self.limit = ConcurrencyLimit(low, high)
        self.now_s = 0.0

    def at(
        self,
        *loads: ServerLoad,
        used: int | None = None,
        times: int = 1,
        is_paused: bool = False,
        everybody: Everybody | None = None,
    ) -> list[Change]:
        """The changes of so many equal looks; `used` None = all places are used."""
        changes = []
        for _ in range(times):
            self.now_s += 1.0
            change = self.limit.look(
                self.now_s,
                loads,
                used=self.limit.places if used is None else used,
                call_s=CALL_S,
                everybody=everybody,
                is_paused=is_paused,
            )
            changes += [] if change is None else [change]
        return changes

    def cut_to(self, places: int) -> None:
        """By a queue, from a limit of 64; then all is quiet for long enough."""
        self.at(a_load(running=places, waiting=64 - places), times=3)
        assert self.limit.places == places
        self.at(a_load(), used=0, times=int(LONGEST_WINDOW_S))


def test_it_begins_at_what_ops_allow_and_stays_there_without_pressure() -> None:
    looks = Looks(high=64)

    assert looks.at(a_load(), times=100) == []
    assert looks.limit.places == 64


def test_a_queue_at_three_looks_in_a_row_cuts_to_what_the_server_carries() -> None:
    looks = Looks(high=64)

    assert looks.at(a_load(running=24, waiting=40), times=2) == []
    assert looks.at(a_load(running=24, waiting=40)) == [Change(64, 24, "queue")]


def test_a_line_that_is_short_or_soon_gone_is_no_queue() -> None:
    looks = Looks(high=64)

    for waiting in (40, 30, 0, 20, 10, 1, 2):
        assert looks.at(a_load(running=24, waiting=waiting)) == []


def test_a_full_kv_cache_cuts_at_once_and_one_that_is_nearly_full_stops_growth() -> None:
    looks = Looks(high=64)
    looks.cut_to(32)

    assert looks.at(a_load(kv=0.85), times=200) == []
    assert looks.at(a_load(kv=1.0)) == [Change(32, 25, "kv")]


def test_it_grows_only_while_it_is_used_up() -> None:
    looks = Looks(high=64)
    looks.cut_to(16)

    assert looks.at(a_load(), used=15, times=100) == []
    grown = looks.at(a_load(), times=20)
    assert [change.after for change in grown] == [17, 18, 19]
    assert {change.cause for change in grown} == {"calm"}


def test_a_cut_is_not_followed_by_another_before_it_shows() -> None:
    """Calls that began before it stand in line for as long as they stand there. Each look of that time halved the limit again, until one
    job was left at a server for sixteen."""
    looks = Looks(high=64)
    looks.at(a_load(running=16, waiting=48), times=3)
    assert looks.limit.places == 16

    for acting in range(64, 16, -1):
        looks.at(a_load(running=16, waiting=acting - 16), used=acting)

    assert looks.limit.places == 16


def test_a_first_cut_that_was_far_too_small_is_corrected_before_it_shows() -> None:
    looks = Looks(high=128)
    assert looks.at(a_load(running=60, waiting=68, kv=1.0), used=128) == [Change(128, 102, "kv")]

    assert looks.at(a_load(running=32, waiting=96, kv=0.7), used=128, times=3) != []
    assert 25 <= looks.limit.places <= 45


def test_one_slow_server_of_many_is_not_for_the_limit_to_solve() -> None:
    looks = Looks(high=64)
    slow, others = a_load("slow", waiting=50), [a_load(f"s{number}") for number in range(7)]

    assert looks.at(slow, *others, times=50) == []
    assert looks.at(slow, a_load("other"), times=50)[0].cause == "queue"


def test_a_server_that_is_gone_takes_its_part_of_the_limit_at_once_and_one_that_joins_is_filled_fast() -> None:
    looks = Looks(high=64)
    two = (a_load("a"), a_load("b"))
    looks.at(*two)

    assert looks.at(a_load("a")) == [Change(64, 32, "servers")]
    grown = looks.at(*two, times=6)
    assert grown[-1].after >= 60
    assert {change.cause for change in grown} == {"servers"}


def test_fast_growth_ends_with_the_first_pressure() -> None:
    looks = Looks(high=64)
    looks.cut_to(16)
    looks.at(a_load("a"), a_load("b"), times=4)
    before = looks.limit.places
    assert before > 20

    looks.at(a_load("a", waiting=8), a_load("b", waiting=8), times=3)
    looks.at(a_load("a"), a_load("b"), used=0, times=60)

    assert len(looks.at(a_load("a"), a_load("b"), times=10)) <= 3


@pytest.mark.parametrize(
    ("loads", "is_paused"),
    [((), False), ((a_load(age_s=STALE_S + 1, waiting=50),), False), ((a_load(age_s=math.inf),), False), ((a_load(waiting=50),), True)],
    ids=["no server", "old facts", "never looked at", "paused"],
)
def test_no_news_is_no_change(loads: Sequence[ServerLoad], is_paused: bool) -> None:
    looks = Looks(high=64)
    looks.cut_to(16)

    assert looks.at(*loads, times=300, is_paused=is_paused) == []
    assert looks.limit.places == 16


def test_what_was_seen_before_an_outage_of_news_counts_no_more() -> None:
    looks = Looks(high=64)
    queue = a_load(running=24, waiting=40)
    looks.at(queue, times=2)

    looks.at(a_load(running=24, waiting=40, age_s=60))

    assert looks.at(queue, times=2) == []
    assert looks.at(queue) != []


def test_many_processes_grow_together_no_faster_than_one() -> None:
    """With equal gains ten processes swing ten times as far as one."""
    alone, one_of_ten = Looks(high=64), Looks(high=64)
    for looks in (alone, one_of_ten):
        looks.cut_to(16)

    alone.at(a_load(), times=20, everybody=Everybody(limits=16, bounds=64))
    one_of_ten.at(a_load(), times=20, everybody=Everybody(limits=16, bounds=640))

    assert alone.limit.places == 19  # a tenth of all limits in the time of a call, ten looks
    assert one_of_ten.limit.places == 16


def test_processes_come_to_limits_in_proportion_to_their_bounds() -> None:
    """However they began: one had it all when the other joined."""
    large, small = ConcurrencyLimit(1, 96), ConcurrencyLimit(1, 32)
    capacity = 40
    for second in range(3000):
        total = large.places + small.places
        load = a_load(running=min(total, capacity), waiting=max(0, total - capacity))
        everybody = Everybody(total, 128)
        for limit in (large, small):
            limit.look(float(second), [load], used=limit.places, call_s=CALL_S, everybody=everybody)

    assert large.places + small.places == pytest.approx(capacity, rel=0.25)
    assert 2.0 <= large.places / small.places <= 4.0


looks_drawn = st.lists(
    st.tuples(
        st.lists(
            st.builds(
                a_load,
                st.sampled_from(["a", "b", "c"]),
                running=st.integers(0, 300),
                waiting=st.integers(0, 300),
                kv=st.one_of(st.just(-1.0), st.floats(0, 1)),
                age_s=st.sampled_from([0.0, 1.0, 60.0, math.inf]),
            ),
            max_size=3,
            unique_by=lambda load: load.server,
        ),
        st.integers(0, 80),
        st.booleans(),
        st.floats(0.01, 600),
    ),
    max_size=60,
)


@given(low=st.integers(1, 8), more=st.integers(0, 60), drawn=looks_drawn)
def test_it_stays_within_its_bounds_and_moves_only_by_news(
    low: int, more: int, drawn: list[tuple[list[ServerLoad], int, bool, float]]
) -> None:
    limit = ConcurrencyLimit(low, low + more)
    seen = [limit.places]
    for second, (loads, used, is_paused, call_s) in enumerate(drawn):
        change = limit.look(float(second), loads, used=used, call_s=call_s, is_paused=is_paused)
        seen.append(limit.places)
        if is_paused or all(load.age_s > STALE_S for load in loads):
            assert change is None
        if change is not None:
            assert (change.before, change.after) == (seen[-2], seen[-1])
            assert change.cause

    assert all(low <= places <= low + more for places in seen)
    assert all(after <= before + max(1, math.ceil(before / 8)) for before, after in pairwise(seen))


@pytest.mark.parametrize(("low", "high"), [(0, 4), (5, 4)])
def test_bounds_that_leave_no_room_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="expected 1 <= low <= high"):
        ConcurrencyLimit(low, high)
