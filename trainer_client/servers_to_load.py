"""The servers of a weight update as the trainer sees them: which to load, whether it still may, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from pipeline.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ServerToLoad:
    """A server whose weights are to be changed."""

    url: str
    model: str
    label: str
    """What its weights were called before; empty when it did not say."""


class ServersToLoad(Sequence[ServerToLoad]):
    """What `Run.weight_update` gives: the servers to load, and after the block what became of them.

    A loop over it ends with `PauseLost` when the lease is gone: whoever stood still for so long must load nothing more, since by then
    another trainer may have loaded the same servers, and given them its label. Before a load that no such loop leads to, call `check`.
    """

    def __init__(self, run: str, version: str, servers: Sequence[ServerToLoad], failed: dict[str, str], check: Callable[[], None]) -> None:
        self.run = run
        self.version = version
        """`<incarnation>.<number>`: how records call the weights that are loaded now."""
        self.failed = failed
        """By address, why a server is not part of this update: it stays without jobs until the next one. Complete after the block."""
        self._servers = tuple(servers)
        self._check: Callable[[], None] | None = check

    @overload
    def __getitem__(self, index: int) -> ServerToLoad: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ServerToLoad]: ...

    def __getitem__(self, index: int | slice) -> ServerToLoad | Sequence[ServerToLoad]:
        return self._servers[index]

    def __len__(self) -> int:
        return len(self._servers)

    def __iter__(self) -> Iterator[ServerToLoad]:
        for server in self._servers:
            self.check()
            yield server

    def check(self) -> None:
        """Says in the block whether weights may be loaded still.

        Raises:
            PauseLost, StaleIncarnation
        """
        if self._check is not None:
            self._check()

    def close(self) -> None:
        """The block is over."""
        self._check = None

    def fail(self, url: str, why: str) -> None:
        """Says in the block that a server could not be loaded: it gets no label, and the others go on."""
        if url not in {server.url for server in self._servers}:
            raise InvalidRequest(f"{url} is not among the servers to load", field="url")
        self.failed.setdefault(url, why)
