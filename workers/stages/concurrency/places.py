"""Who acts and who is held, when fewer jobs may call the model than are here. Pure.

A job has a place from its first model call until it ends, so that a whole group finishes together and its prefixes stay cached. When the
limit falls below what acts, the youngest groups give way: a job that calls the model keeps its place until the call is over, and the others
lose it now. Held jobs get places as they become free, the oldest group first, within a group in the order of arrival.

Invariants:
  1. More jobs than the limit have a place only while their calls, begun before it fell, are going on.
  2. No held job waits while a place is free.
  3. No held job is of an older group than one that has a place, unless that one calls the model just now or had its place first.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Seat(Generic[Key]):
    """One job."""

    key: Key
    age: tuple[float, str, int]
    """Sorts the oldest first: when its group came here, its name, and this job's number."""
    calls: int = 0
    acts: bool = False
    waits: bool = False


class Places(Generic[Key]):
    """The jobs of one (run, model) in this process.

    Args:
        limit: so many may act.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.acting = 0
        """Jobs that have a place."""
        self._seats: dict[Key, _Seat[Key]] = {}
        self._groups: dict[str, tuple[float, int]] = {}
        """Since when a group is here, and with how many jobs."""
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def held(self) -> int:
        """Jobs that want to call the model and have no place."""
        return sum(seat.waits for seat in self._seats.values())

    def come(self, key: Key, group: str, since: float) -> None:
        """A job is here.

        Args:
            group: empty = it is one by itself.
            since: when it was queued; the age of its group is that of the member which came first.
        """
        name = group or f"{key}"
        began, members = self._groups.get(name, (since, 0))
        self._groups[name] = (began, members + 1)
        self._arrivals += 1
        self._seats[key] = _Seat(key, (began, name, self._arrivals))

    def go(self, key: Key) -> list[Key]:
        """A job has left; who gets its place."""
        seat = self._seats.pop(key, None)
        if seat is None:
            return []
        self.acting -= seat.acts
        began, members = self._groups.pop(seat.age[1])
        if members > 1:
            self._groups[seat.age[1]] = (began, members - 1)
        return self._fill()

    def want(self, key: Key) -> bool:
        """A job is about to call the model: whether it has a place. If not it waits until `go` or `set_limit` name it.

        One that has gone, and calls all the same, is nobody's business here.
        """
        seat = self._seats.get(key)
        if seat is None:
            return True
        if not seat.acts:
            if self.acting >= self.limit:
                seat.waits = True
                return False
            self._seat(seat)
        seat.calls += 1
        return True

    def give_up(self, key: Key) -> None:
        """A job waits no longer, and stays."""
        if key in self._seats:
            self._seats[key].waits = False

    def called(self, key: Key) -> None:
        """A call of a job is over."""
        if key in self._seats:
            self._seats[key].calls -= 1
            self._shed()

    def set_limit(self, limit: int) -> list[Key]:
        """Another limit; who gets a place by it."""
        self.limit = limit
        self._shed()
        return self._fill()

    def _seat(self, seat: _Seat[Key]) -> None:
        seat.waits, seat.acts = False, True
        self.acting += 1

    def _shed(self) -> None:
        """The youngest of those that act beyond the limit give way, as far as they are not calling."""
        if self.acting <= self.limit:
            return
        for seat in sorted((seat for seat in self._seats.values() if seat.acts), key=lambda seat: seat.age)[self.limit :]:
            if not seat.calls:
                seat.acts = False
                self.acting -= 1

    def _fill(self) -> list[Key]:
        free = self.limit - self.acting
        if free <= 0:
            return []
        granted = sorted((seat for seat in self._seats.values() if seat.waits), key=lambda seat: seat.age)[:free]
        for seat in granted:
            self._seat(seat)
        return [seat.key for seat in granted]
