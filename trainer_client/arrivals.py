"""What arrives, given to each reader once, in order: first what is here already, then what comes while it reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """What one reader has not been given yet."""

    def __init__(self, waiting: Iterable[T]) -> None:
        self.waiting = deque(waiting)
        """The reader takes from the left."""
        self._arrived: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self.waiting.append(item)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def take_back(self, item: T) -> None:
        """Takes away what the reader has not been given."""
        with suppress(ValueError):
            self.waiting.remove(item)

    def arrival(self) -> asyncio.Future[None]:
        """Resolved when there is something to take."""
        self._arrived = asyncio.get_running_loop().create_future()
        if self.waiting:
            self._arrived.set_result(None)
        return self._arrived


class Readers(Generic[T]):
    """All who read one kind of thing."""

    def __init__(self) -> None:
        self._readers: list[Arrivals[T]] = []

    def put(self, item: T) -> None:
        """Gives it to each of them."""
        for reader in self._readers:
            reader.put(item)

    def take_back(self, item: T) -> None:
        """Takes it from all who have not been given it."""
        for reader in self._readers:
            reader.take_back(item)

    @contextmanager
    def join(self, already: Iterable[T]) -> Iterator[Arrivals[T]]:
        """One more reader, while the block runs.

        Args:
            already: what is here before anything arrives.
        """
        reader = Arrivals(already)
        self._readers.append(reader)
        try:
            yield reader
        finally:
            self._readers.remove(reader)
