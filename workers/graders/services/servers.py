"""Which of some servers is asked next.

Invariants
    - The least busy one, as this process counts it; of equals the one that was asked longest ago.
    - A server that failed rests, twice as long after each further failure, up to `LONGEST_REST_S`. While it rests it is asked only when all
      others that were not tried rest, too: then the one whose rest is nearest its end. So a service is never given up.
    - One answer, and a server is like any other again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

LONGEST_REST_S = 60.0


@dataclass(slots=True, kw_only=True)
class Server:
    """One of them, as this process sees it."""

    url: str
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    rests_until: float = 0.0
    last_asked: int = 0


class Servers:
    """The servers of one service.

    Args:
        rest_s: after a first failure.
        clock: seconds of a clock that only goes forward.
    """

    def __init__(self, urls: Sequence[str], *, rest_s: float, clock: Callable[[], float]) -> None:
        self.all = tuple(Server(url=url) for url in urls)
        self._rest_s = rest_s
        self._clock = clock
        self._asked = 0

    def next(self, tried: Collection[str] = ()) -> Server:
        """The one to ask, and it counts as busy from now on.

        Args:
            tried: addresses that failed for this request: asked again only when all are in it.
        """
        now = self._clock()
        left = [server for server in self.all if server.url not in tried] or list(self.all)
        awake = [server for server in left if server.rests_until <= now]
        if awake:
            found = min(awake, key=lambda server: (server.in_flight, server.last_asked))
        else:
            found = min(left, key=lambda server: (server.rests_until, server.in_flight, server.last_asked))
        self._asked += 1
        found.last_asked = self._asked
        found.in_flight += 1
        return found

    def answered(self, server: Server) -> None:
        """It did what it should."""
        server.failures, server.rests_until = 0, 0.0

    def failed(self, server: Server, *, wants_s: float = 0.0) -> None:
        """It did not.

        Args:
            wants_s: the pause that it asked for.
        """
        server.failures += 1
        rest_s = self._rest_s * 2.0 ** min(server.failures - 1, 16)
        server.rests_until = self._clock() + min(LONGEST_REST_S, max(rest_s, wants_s))

    def left(self, server: Server) -> None:
        """The request is over, however."""
        server.in_flight -= 1
