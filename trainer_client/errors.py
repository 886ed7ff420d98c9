"""What a trainer can meet beside the errors of `pipeline.errors`.

RollstreamError
├── WaitTimeout     what was waited for did not come in time; `why` says what stands in its way
├── BodyMissing     a result has no such body, or it is gone; says which
├── UpdateFailed    no server could be given new weights; says why of each
└── ClientClosed    the client was closed before the call, or while it waited
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.errors import RollstreamError


class WaitTimeout(RollstreamError, TimeoutError):
    """Nothing came within the time that was given. Nothing is lost: the same wait can be made again.

    Args:
        what: what was waited for.
        waited_s: for how long.
        why: what stands in its way, as far as Redis tells.
    """

    def __init__(self, what: str, waited_s: float, why: Sequence[str]) -> None:
        super().__init__(f"{what}: nothing after {waited_s:.1f} s. " + " ".join(f"{reason}." for reason in why))
        self.what = what
        self.waited_s = waited_s
        self.why = tuple(why)


class BodyMissing(RollstreamError):
    """A body that was asked for is not in Redis."""

    def __init__(self, job: str, body: str, why: str) -> None:
        super().__init__(f"job {job} has no {body}: {why}")
        self.job = job
        self.body = body
        self.why = why


class UpdateFailed(RollstreamError):
    """No server got the new weights. Those that were changed stay without jobs until the next update.

    Args:
        servers: why not, by address.
    """

    def __init__(self, run: str, version: str, servers: Mapping[str, str]) -> None:
        each = "; ".join(f"{url}: {why}" for url, why in servers.items())
        super().__init__(f"no server of run {run!r} got version {version}: {each}")
        self.run = run
        self.version = version
        self.servers = dict(servers)


class ClientClosed(RollstreamError):
    """The client of a run was closed; connect again."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the client of run {run!r} is closed: use it inside its `async with connect(...)` block")
        self.run = run
