"""What the inference pool must do, in plain Python: leases, calls, looks and pauses of one run, without Redis (ADR 12)."""

from __future__ import annotations

from dataclasses import dataclass, field

RUN = "run1"


@dataclass(slots=True)
class ReferenceServer:
    """A server of the run."""

    draining: bool = False
    label: str = ""
    fails: int = 0
    alive: bool = True
    leases: set[str] = field(default_factory=set)
    """Holders of those that live."""
    over: set[str] = field(default_factory=set)
    """Holders of those that ran out and that nobody has swept yet."""
    calls: dict[str, set[str]] = field(default_factory=dict)
    """Holder -> its calls in flight."""
    to_abort: set[str] = field(default_factory=set)

    def live_on(self, holder: str) -> None:
        """It has a lease from now on."""
        self.over.discard(holder)
        self.leases.add(holder)

    def run_out(self, holder: str) -> None:
        """Nobody renewed its lease."""
        self.leases.discard(holder)
        self.over.add(holder)


@dataclass(slots=True)
class ReferencePool:
    """The run. It has no clock: leases run out when a step says so."""

    servers: dict[str, ReferenceServer] = field(default_factory=dict)
    allowed: str = ""
    paused_by: str = ""

    def is_synced(self, url: str) -> bool:
        """Whether the run allows its label."""
        return not self.allowed or self.servers[url].label == self.allowed

    def takes_calls(self, url: str) -> bool:
        """Whether a call of a lease may begin there."""
        server = self.servers.get(url)
        return server is not None and server.alive and self.is_synced(url)

    def takes_jobs(self, url: str) -> bool:
        """Whether a new job may be assigned there."""
        return self.takes_calls(url) and not self.servers[url].draining

    def expire(self, url: str, holder: str) -> None:
        """A lease ended, or ran out and was swept: its calls are to be aborted."""
        server = self.servers[url]
        server.leases.discard(holder)
        server.over.discard(holder)
        server.to_abort |= server.calls.pop(holder, set())
