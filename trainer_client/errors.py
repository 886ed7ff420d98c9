"""What a trainer can meet beside the errors of `pipeline.errors`.

RollstreamError
├── WaitTimeout     what was waited for did not come in time; `why` says what stands in its way
├── BodyMissing     a result has no such body, or it is gone; says which
├── GroupsBroken    infrastructure broke every member of the first groups; says how
├── UpdateFailed    no server could be given new weights; says why of each
├── ClientForked    the client was made in another process
└── ClientClosed    the client was closed before the call, or while it waited
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.causes import Reason
from pipeline.errors import RollstreamError

FULL = "ack what was trained on, or give Redis more memory"
"""What to do where no new work is taken."""

GONE = "it was acked, its time ran out, or Redis lost its last writes in a failover or a crash"
"""Why a body can be missing that was there."""


class WaitTimeout(RollstreamError, TimeoutError):
    """Nothing came within the time that was given. Nothing is lost: the same wait can be made again.

    Args:
        what: what was waited for.
        waited_s: for how long.
        reasons: what stands in its way, as far as is known, what to see to first before the rest.
    """

    def __init__(self, what: str, waited_s: float, reasons: Sequence[Reason]) -> None:
        super().__init__(f"{what}: nothing after {waited_s:.1f} s. " + " ".join(f"{reason}." for reason in reasons))
        self.what = what
        self.waited_s = waited_s
        self.why = tuple(map(str, reasons))
        """The reasons in sentences."""
        self.causes = tuple(reason.cause for reason in reasons)
        """The same as words of a closed list, for programs that pass them on."""


class BodyMissing(RollstreamError):
    """A body that was asked for is not in Redis."""

    def __init__(self, job: str, body: str, why: str) -> None:
        super().__init__(f"job {job} has no {body}: {why}")
        self.job = job
        self.body = body
        self.why = why


class GroupsBroken(RollstreamError):
    """Infrastructure broke every member of the run's first groups: no rollout of it works. The step goes on: mend it, and ask again.

    Args:
        count: groups, one after the other.
        why: reason of a member of the last one.
        job: that member.
        probe_s: one group is tried so long after the last.
    """

    def __init__(self, run: str, count: int, why: str, job: str, *, probe_s: float) -> None:
        super().__init__(
            f"no rollout of run {run!r} works: infrastructure broke every member of its first {count} groups: {why} (more: rollstream job "
            f"show {job}). One group is tried every {probe_s:.0f} s, so that no prompts are used up: mend it, then ask for the steps again"
        )
        self.run = run
        self.count = count
        self.why = why
        self.job = job


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
        super().__init__(f"the client of run {run!r} is closed: use it inside its `with` block, or connect again")
        self.run = run


class ClientForked(RollstreamError):
    """This process was forked off the one that made the client. Two processes on one connection would read each other's answers."""

    def __init__(self, run: str, pid: int) -> None:
        super().__init__(
            f"the client of run {run!r} was made in process {pid}, of which this one was forked: connect in the process that uses it (a "
            "rank without the run: connect_reader), or start workers by `spawn`"
        )
        self.run = run
