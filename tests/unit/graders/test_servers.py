"""Which server is asked next, by a clock that a test turns."""

from __future__ import annotations

from workers.graders.services.servers import LONGEST_REST_S, Server, Servers


class HandClock:
    """Seconds that go on when it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def servers(*urls: str, rest_s: float = 5.0) -> tuple[Servers, HandClock]:
    clock = HandClock()
    return Servers(urls, rest_s=rest_s, clock=clock), clock


def ask(found: Servers, *tried: str) -> Server:
    """One that was asked, and left at once."""
    server = found.next(tried)
    found.left(server)
    return server


def test_idle_servers_take_turns() -> None:
    found, _ = servers("a", "b", "c")

    assert [ask(found).url for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_the_least_busy_one_goes_first_and_one_that_failed_for_this_request_last() -> None:
    found, _ = servers("a", "b", "c")
    found.next()
    found.next()

    assert found.next().url == "c"
    assert found.next(("a", "b")).url == "c"
    assert found.next(("a", "b", "c")).url in {"a", "b"}


def test_a_server_that_failed_rests_longer_each_time_until_it_answers() -> None:
    found, clock = servers("a", "b")
    rests = []
    for _ in range(6):
        found.failed(found.all[0])
        rests.append(found.all[0].rests_until - clock.now)

    assert rests == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert [ask(found).url for _ in range(3)] == ["b"] * 3
    clock.now += LONGEST_REST_S
    assert ask(found).url == "a"
    found.answered(found.all[0])
    found.failed(found.all[0])
    assert found.all[0].rests_until - clock.now == 5.0


def test_the_pause_that_a_server_asks_for_is_kept_within_bounds() -> None:
    found, clock = servers("a")
    found.failed(found.all[0], wants_s=30.0)
    short = found.all[0].rests_until - clock.now
    found.failed(found.all[0], wants_s=86_400.0)

    assert (short, found.all[0].rests_until - clock.now) == (30.0, LONGEST_REST_S)


def test_when_all_rest_the_one_that_is_nearest_to_its_end_is_asked() -> None:
    found, clock = servers("a", "b")
    found.failed(found.all[0])
    clock.now += 1.0
    found.failed(found.all[1])

    assert ask(found).url == "a"
    assert ask(found, "a").url == "b"
