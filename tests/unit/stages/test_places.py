"""Which jobs act when not all may."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from workers.stages.concurrency import Places


def calling(places: Places[str], *jobs: str, group: str = "", since: float = 0.0) -> None:
    """Jobs that come, and call the model if they may."""
    for job in jobs:
        places.come(job, group, since)
        places.want(job)


def test_a_job_keeps_its_place_between_its_calls() -> None:
    places = Places[str](1)
    calling(places, "a", since=1)
    calling(places, "b", since=0)

    places.called("a")

    assert (places.acting, places.held) == (1, 1)
    assert places.want("a")
    assert places.go("a") == ["b"]


def test_the_oldest_group_gets_the_free_place_whichever_of_its_members_waits() -> None:
    """So a group finishes together: its age is that of the member that came first."""
    places = Places[str](2)
    calling(places, "old.0", group="old", since=10)
    calling(places, "acts", since=5)
    calling(places, "young", group="young", since=20)
    calling(places, "old.1", group="old", since=30)

    assert places.go("acts") == ["old.1"]
    assert places.go("old.1") == ["young"]


def test_the_youngest_groups_give_way_at_the_end_of_their_calls() -> None:
    places = Places[str](4)
    for number, job in enumerate(("a", "b", "c", "d")):
        calling(places, job, since=number)
    places.called("c")

    assert places.set_limit(2) == []

    assert places.acting == 3, "c is between two calls and has lost its place; d calls"
    assert not places.want("c")
    places.called("d")
    assert places.acting == 2
    assert not places.want("d")
    assert places.want("a")
    assert places.set_limit(3) == ["c"]


def test_a_job_that_leaves_the_line_gets_no_place() -> None:
    places = Places[str](1)
    calling(places, "a", "b", "c")

    places.give_up("b")

    assert places.go("a") == ["c"]
    assert places.want("b") is False


def test_a_job_that_has_gone_is_nobodys_business() -> None:
    """Work that swallows its interruption goes on when its place was given to another."""
    places = Places[str](1)
    calling(places, "a", "b")
    assert places.go("a") == ["b"]

    assert places.go("a") == []
    assert places.want("a")
    places.called("a")

    assert (places.acting, len(places)) == (1, 1)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_no_place_is_free_while_a_job_waits_and_none_is_lost(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    places = Places[int](rng.randint(1, 6))
    group_of: dict[int, str] = {}
    in_call: set[int] = set()
    waiting: set[int] = set()

    def granted(jobs: list[int]) -> None:
        for job in jobs:
            assert job in waiting
            waiting.discard(job)
            want(job)

    def want(job: int) -> None:
        if places.want(job):
            in_call.add(job)
        else:
            waiting.add(job)

    for number in range(steps):
        match rng.randrange(4):
            case 0:
                group_of[number] = rng.choice("abcd")
                places.come(number, group_of[number], float(number))
                want(number)
            case 1 if in_call:
                job = rng.choice(sorted(in_call))
                in_call.discard(job)
                places.called(job)
                if rng.random() < 0.5:
                    want(job)
            case 2 if group_of:
                job = rng.choice(sorted(group_of))
                del group_of[job]
                in_call.discard(job)
                waiting.discard(job)
                granted(places.go(job))
            case 3:
                granted(places.set_limit(rng.randint(1, 6)))
        assert places.held == len(waiting)
        assert not waiting or places.acting >= places.limit
        assert places.acting - places.limit <= len(in_call) <= places.acting

    for job in list(group_of):
        del group_of[job]
        in_call.discard(job)
        waiting.discard(job)
        granted(places.go(job))
    assert (len(places), places.acting, places.held) == (0, 0, 0)
    assert not waiting
