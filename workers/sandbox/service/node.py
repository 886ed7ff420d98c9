"""The sandboxes of one node: who is attached to which, what waits parked, and how each ends.

    start, attach -> Attachment          bound to one connection
    the connection ends -> lost          what it held ends, whatever the worker was doing
    park, stop, kill by the worker       the attachment is over; its connection may go
    end                                  for whoever knows that a job is over: the node agent, or a person

1. An attachment stands in `attached` from when its sandbox is there until the sandbox has ended or was parked.
2. `epoch` is the life of this object: what earlier ones left is swept before the first start, so no handle outlives its epoch.
3. While the node drains it starts nothing and attaches nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from workers.sandbox.base import Probe, Sandbox
from workers.sandbox.errors import NodeUnavailable, SandboxError, SandboxGone
from workers.sandbox.local import LocalSandboxes, sweep
from workers.sandbox.local.folder import SANDBOX_ID, SandboxFolder, sandbox_paths
from workers.sandbox.local.teardown import tear_down
from workers.sandbox.service.views import SandboxView, views
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec

log = structlog.get_logger(__name__)

ENDS_AT_ONCE = 8
"""Sandboxes that are torn down side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Who holds a connection."""

    boot: str
    """The life of its process."""
    pid: int
    """0 where the system does not tell."""
    fleet: str
    """Whose jobs it works on: only an agent of the same fleet judges them."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attachment:
    """One sandbox in the hands of one connection."""

    sandbox: Sandbox
    owner: SandboxOwner
    worker: Worker
    since_s: float
    """By the clock of the epoch, for people."""
    on_gone: Callable[[str], None]
    why: str = ""
    """Why we ended it; empty = it ended by itself, or by its worker."""
    watch: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def sandbox_id(self) -> str:
        return self.sandbox.handle.sandbox_id


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedSandbox:
    """A sandbox and for whom it was made: what an agent asks its queue about."""

    sandbox_id: str
    job_id: str
    attempt: int
    boot_id: str

    @property
    def owner(self) -> SandboxOwner:
        return SandboxOwner(job_id=self.job_id, attempt=self.attempt, boot_id=self.boot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """What became of sandboxes that were to end."""

    ended: tuple[str, ...]
    failed: dict[str, str]
    """By id: why it could not be proven gone. Tried again by whoever asks again."""


class NodeSandboxes:
    """All sandboxes of a node.

    Args:
        provider: what makes them; entered and closed by the caller.
    """

    def __init__(self, provider: LocalSandboxes) -> None:
        self.provider = provider
        self.node = provider.node
        self.epoch = secrets.token_hex(8)
        self.draining = False
        self.attached: dict[str, Attachment] = {}
        self._fleets: dict[str, str] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._losses: set[asyncio.Task[None]] = set()

    async def sweep_earlier(self) -> None:
        """Ends what an earlier life of this service left: nobody can hold it any more."""
        report = await sweep(self.provider.scratch_dir, lambda _: False)
        if report.removed:
            log.info("earlier_epoch_swept", removed=len(report.removed))
        for failure in report.failed:
            log.error("sandbox_not_removed", error=str(failure))

    async def probe(self) -> Probe:
        """Whether the backend works."""
        return await self.provider.probe()

    # -- attachments ---------------------------------------------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec, owner: SandboxOwner, worker: Worker, on_gone: Callable[[str], None]) -> Attachment:
        """Makes a sandbox for a connection.

        Raises:
            NodeUnavailable, and what `SandboxProvider.start` raises.
        """
        self._check_open()
        return self._bind(await self.provider.start(spec, owner), owner, worker, on_gone)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner, worker: Worker, on_gone: Callable[[str], None]) -> Attachment:
        """Gives a parked sandbox to a connection.

        Raises:
            NodeUnavailable, and what `SandboxProvider.attach` raises.
        """
        self._check_open()
        return self._bind(await self.provider.attach(handle, owner), owner, worker, on_gone)

    def lose(self, attachment: Attachment) -> None:
        """The connection of an attachment ended before it said what is to become of its sandbox."""
        ending = asyncio.get_running_loop().create_task(self._end_lost(attachment), name=f"end lost sandbox {attachment.sandbox_id}")
        self._losses.add(ending)
        ending.add_done_callback(self._losses.discard)

    async def settle(self) -> None:
        """Until nothing is left of connections that have ended by now."""
        await asyncio.gather(*self._losses)
        await self.provider.settle()

    async def drain(self, grace_s: float) -> None:
        """Starts nothing new, waits for the attachments, and ends those that are left."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._emptied.wait()
        report = await self.end([found.sandbox_id for found in await self.owned()], "the node service stops")
        for sandbox_id, why in report.failed.items():
            log.error("sandbox_not_removed", sandbox=sandbox_id, error=why)
        await self.settle()

    # -- what an agent and people ask for ---------------------------------------------------------------------------------------------

    async def owned(self, fleet: str | None = None) -> list[OwnedSandbox]:
        """All sandboxes, attached or parked, or those that workers of one fleet made."""
        known = set(self._fleets)
        found = await asyncio.to_thread(self._read_owners)
        for sandbox_id in known.difference(owned.sandbox_id for owned in found):
            self._fleets.pop(sandbox_id, None)
        return [owned for owned in found if fleet is None or self._fleets.get(owned.sandbox_id) == fleet]

    async def views(self, prefix: str = "", *, with_processes: bool = False) -> list[SandboxView]:
        """Sandboxes as people are shown them."""
        read = partial(views, prefix=prefix, with_processes=with_processes)
        return await asyncio.to_thread(read, self.provider.scratch_dir, dict(self.attached))

    async def end(self, sandbox_ids: Sequence[str], why: str) -> EndReport:
        """Ends sandboxes, whoever holds them. One that is not there any more counts as ended."""
        gate = asyncio.Semaphore(ENDS_AT_ONCE)
        failed: dict[str, str] = {}

        async def end_one(sandbox_id: str) -> None:
            async with gate:
                try:
                    await self._end_one(sandbox_id, why)
                except SandboxError as error:
                    failed[sandbox_id] = str(error)

        await asyncio.gather(*map(end_one, dict.fromkeys(sandbox_ids)))
        return EndReport(ended=tuple(each for each in dict.fromkeys(sandbox_ids) if each not in failed), failed=failed)

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.draining:
            raise NodeUnavailable(self.provider.backend, f"the service of node {self.node} stops")

    def _bind(self, sandbox: Sandbox, owner: SandboxOwner, worker: Worker, on_gone: Callable[[str], None]) -> Attachment:
        """No step of it waits: a connection that ends meanwhile finds the attachment, or the provider's undoing does."""
        attachment = Attachment(sandbox=sandbox, owner=owner, worker=worker, since_s=time.time(), on_gone=on_gone)
        self.attached[attachment.sandbox_id] = attachment
        self._fleets[attachment.sandbox_id] = worker.fleet
        self._emptied.clear()
        name = f"watch sandbox {attachment.sandbox_id}"
        attachment.watch = asyncio.get_running_loop().create_task(self._watch(attachment), name=name)
        return attachment

    async def _watch(self, attachment: Attachment) -> None:
        why = await attachment.sandbox.wait_gone()
        if self.attached.get(attachment.sandbox_id) is attachment:
            del self.attached[attachment.sandbox_id]
        if not self.attached:
            self._emptied.set()
        attachment.on_gone(attachment.why or why)

    async def _end_lost(self, attachment: Attachment) -> None:
        try:
            await attachment.sandbox.kill()
        except SandboxError as error:
            log.error("lost_sandbox_not_removed", sandbox=attachment.sandbox_id, job_id=attachment.owner.job_id, error=str(error))
        else:
            log.info("sandbox_lost", sandbox=attachment.sandbox_id, job_id=attachment.owner.job_id, attempt=attachment.owner.attempt)

    async def _end_one(self, sandbox_id: str, why: str) -> None:
        attachment = self.attached.get(sandbox_id)
        if attachment is not None:
            attachment.why = attachment.why or why
            await attachment.sandbox.kill()
        if not SANDBOX_ID.fullmatch(sandbox_id):
            return
        with contextlib.suppress(SandboxGone):
            await tear_down(await asyncio.to_thread(SandboxFolder.open, self.provider.scratch_dir / sandbox_id))

    def _read_owners(self) -> list[OwnedSandbox]:
        found = []
        for path in sandbox_paths(self.provider.scratch_dir):
            with contextlib.suppress(SandboxGone):
                owner = SandboxFolder.open(path).record.owner
                found.append(OwnedSandbox(sandbox_id=path.name, job_id=owner.job_id, attempt=owner.attempt, boot_id=owner.boot_id))
        return found
