"""The sandboxes of one node: who is attached to which, what waits parked, and how each ends.

    start, attach -> Attachment          bound to one connection
    the connection ends -> lost          what it held ends, whatever the worker was doing; one that was only attached to, and
                                         not changed, waits on as if nobody had been there (rule 4 of `base.py`)
    park, stop, kill by the worker       the attachment is over; its connection may go
    end                                  for whoever knows that a job is over: the node agent, or a person

1. An attachment stands in `attached` from when its sandbox is there until the sandbox has ended or was parked.
2. `epoch` is the life of this object: what earlier ones left is swept before the first start, so no handle outlives its epoch.
3. While the node drains it starts nothing and attaches nothing; while it is degraded (`health.py`) it starts nothing. What was being
   started or attached when the drain began has the same grace as what is attached.
4. `async with` is its life: meanwhile the janitor makes its rounds, the warm pool is filled, and a degraded node tries whether it is well.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

import structlog

from pipeline.usable_cores import usable_cores
from workers.sandbox.base import Probe, Sandbox
from workers.sandbox.errors import NodeUnavailable, SandboxError, SandboxGone, SandboxLeak
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.folder import SANDBOX_ID, SandboxFolder, sandbox_paths
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.local.teardown import tear_down
from workers.sandbox.service.gates import StartGates
from workers.sandbox.service.health import NodeHealth
from workers.sandbox.service.janitor import Tidied, tidy
from workers.sandbox.service.settings import SandboxSettings
from workers.sandbox.service.starts import Starts
from workers.sandbox.service.views import SandboxView, views
from workers.sandbox.service.warm_pool import WarmPool, has_room
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

log = structlog.get_logger(__name__)

ENDS_AT_ONCE = 8
"""Sandboxes that are torn down side by side."""


OnGone = Callable[[str, bool], None]
"""Told why a sandbox has ended, and whether the node ended it over its worker's head."""


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

    sandbox: LocalSandbox
    owner: SandboxOwner
    worker: Worker
    was_made: bool
    """By this attachment; else it was made and parked before."""
    since_s: float
    """By the clock of the epoch, for people."""
    on_gone: OnGone
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
        settings: how many start at once and are kept ready, and how often the janitor looks.
        sweep_images: removes what dead processes left half made of images, and says how much that was. Blocks; called by the janitor.
    """

    def __init__(
        self, provider: LocalSandboxes, settings: SandboxSettings | None = None, *, sweep_images: Callable[[], int] | None = None
    ) -> None:
        settings = settings or SandboxSettings()
        self.provider = provider
        self._sweep_images = sweep_images
        self.health = NodeHealth()
        self.gates = StartGates(starts=settings.starts or usable_cores(), per_image=settings.starts_per_image)
        self._random = Random()
        self._starts = Starts(provider, self.gates, self.health, limit_s=settings.start_s, check=self._check_starts, random=self._random)
        room = partial(has_room, provider.scratch_dir)
        self.warm = WarmPool(_Source(self._starts, provider), per_spec=settings.warm, ttl_s=settings.warm_ttl_s, has_room=room)
        self._janitor_s = settings.janitor_s
        self._tasks: list[asyncio.Task[None]] = []
        self.node = provider.node
        self.epoch = secrets.token_hex(8)
        self.draining = False
        self.attached: dict[str, Attachment] = {}
        self._fleets: dict[str, str] = {}
        self._binding: set[asyncio.Task[object]] = set()
        """Who waits for a sandbox that is being started or attached."""
        self._cut_short: set[asyncio.Task[object]] = set()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._unbound = asyncio.Event()
        self._unbound.set()
        self._losses: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        work = {"janitor": self._keep_tidy(), "recovery": self.health.recover(self._try_plain, self._random), "warm pool": self.warm.run()}
        self._tasks = [loop.create_task(steps, name=name) for name, steps in work.items()]
        for task in self._tasks:
            task.add_done_callback(_log_failure)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.warm.empty()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def sweep_earlier(self) -> None:
        """Ends what an earlier life of this service left: nobody can hold it any more."""
        tidied = await self.tidy(everything=True)
        if tidied.ended or tidied.folders:
            log.info("earlier_epoch_swept", removed=len(tidied.ended), folders=tidied.folders)

    async def tidy(self, *, everything: bool = False) -> Tidied:
        """One round of the janitor."""
        again = () if everything else self.health.leaked
        round_ = partial(tidy, self.provider.scratch_dir, self.provider.run_dir, is_ours_now=self.provider.holds, again=again)
        tidied = await asyncio.to_thread(partial(round_, everything=everything))
        for sandbox_id in tidied.ended:
            self.health.proven(sandbox_id)
        for sandbox_id, why in tidied.failed.items():
            log.error("sandbox_not_removed", sandbox=sandbox_id, error=why)
            self.health.not_proven(sandbox_id, why)
        if self._sweep_images is not None:
            try:
                swept = await asyncio.to_thread(self._sweep_images)
            except OSError as error:
                log.error("images_not_swept", error=str(error))
            else:
                tidied = replace(tidied, folders=tidied.folders + swept)
        return tidied

    async def probe(self) -> Probe:
        """Whether the backend works."""
        return await self.provider.probe()

    # -- attachments ---------------------------------------------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec, owner: SandboxOwner, worker: Worker, on_gone: OnGone) -> Attachment:
        """Makes a sandbox for a connection.

        Raises:
            NodeUnavailable, and what `SandboxProvider.start` raises.
        """
        self._check_open()
        self._check_starts()
        with self._may_be_cut_short():
            sandbox = await self.warm.take(spec, owner) or await self._starts.start(spec, owner)
            return self._bind(sandbox, owner, worker, on_gone, was_made=True)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner, worker: Worker, on_gone: OnGone) -> Attachment:
        """Gives a parked sandbox to a connection.

        Raises:
            NodeUnavailable, and what `SandboxProvider.attach` raises.
        """
        self._check_open()
        with self._may_be_cut_short():
            return self._bind(await self._starts.attach(handle, owner), owner, worker, on_gone, was_made=False)

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner, worker: Worker, on_gone: OnGone) -> Attachment:
        """Makes a sandbox that begins from a snapshot, for a connection.

        Raises:
            NodeUnavailable, and what `SandboxProvider.restore` raises.
        """
        self._check_open()
        self._check_starts()
        with self._may_be_cut_short():
            return self._bind(await self._starts.restore(snapshot, owner), owner, worker, on_gone, was_made=True)

    async def snapshot(self, sandbox: Sandbox, worker: Worker) -> Snapshot:
        """Keeps the files of a sandbox; what comes of it is judged by the agent of the worker's fleet, as a sandbox is."""
        snapshot = await sandbox.snapshot()
        self._fleets[snapshot.snapshot_id] = worker.fleet
        return snapshot

    def lose(self, attachment: Attachment) -> None:
        """The connection of an attachment ended before it said what is to become of its sandbox."""
        ending = asyncio.get_running_loop().create_task(self._end_lost(attachment), name=f"end lost sandbox {attachment.sandbox_id}")
        self._losses.add(ending)
        ending.add_done_callback(self._losses.discard)

    def wind_up(self, call: asyncio.Task[None]) -> None:
        """A call that was cancelled because its connection has ended: what it began may only now be found to be nobody's."""
        self._losses.add(call)
        call.add_done_callback(self._losses.discard)

    async def settle(self) -> None:
        """Until nothing is left of connections that have ended by now."""
        for outcome in await asyncio.gather(*self._losses, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await self.provider.settle()
        await self._starts.settle()

    async def drain(self, grace_s: float) -> None:
        """Starts nothing new, waits for the attachments, and ends those that are left."""
        self.draining = True
        await self.warm.empty()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._emptied.wait()
        for binding in self._binding:
            self._cut_short.add(binding)
            binding.cancel()
        await self._unbound.wait()
        await self.settle()
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
        attached = dict(self.attached)
        uses = {sandbox_id: await held.sandbox.use() for sandbox_id, held in attached.items() if sandbox_id.startswith(prefix)}
        read = partial(views, prefix=prefix, with_processes=with_processes)
        return await asyncio.to_thread(read, self.provider.scratch_dir, attached, uses)

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
                    self.note_leak(error)

        await asyncio.gather(*map(end_one, dict.fromkeys(sandbox_ids)))
        return EndReport(ended=tuple(each for each in dict.fromkeys(sandbox_ids) if each not in failed), failed=failed)

    def note_leak(self, error: Exception) -> None:
        """Takes note of a sandbox whose end was not proven: the node is degraded until the janitor has done it."""
        if isinstance(error, SandboxLeak):
            self.health.not_proven(error.sandbox_id, str(error))

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.draining:
            raise self._stops()

    def _stops(self) -> NodeUnavailable:
        return NodeUnavailable(self.provider.backend, f"the service of node {self.node} stops")

    @contextlib.contextmanager
    def _may_be_cut_short(self) -> Iterator[None]:
        """The current task waits for a sandbox to come up; a drain waits for it, or cancels it, which it hears as `NodeUnavailable`."""
        binding = asyncio.current_task()
        assert binding is not None
        self._binding.add(binding)
        self._emptied.clear()
        self._unbound.clear()
        try:
            yield
        except asyncio.CancelledError:
            if binding in self._cut_short and not binding.uncancel():
                raise self._stops() from None
            raise
        finally:
            self._binding.discard(binding)
            self._cut_short.discard(binding)
            self._see_whether_empty()

    def _see_whether_empty(self) -> None:
        if not self._binding:
            self._unbound.set()
        if not self.attached and not self._binding:
            self._emptied.set()

    def _check_starts(self) -> None:
        self._check_open()
        if self.health.degraded:
            raise NodeUnavailable(self.provider.backend, f"node {self.node} is degraded: {self.health.degraded}")

    async def _try_plain(self) -> Probe:
        """A sandbox of the node's own, for whether starts work again."""
        return await self.provider.probe()

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(self._janitor_s)
            try:
                tidied = await self.tidy()
            except OSError as error:  # a folder that cannot be listed now
                log.error("janitor_failed", error=str(error))
                continue
            if tidied.ended or tidied.folders:
                log.warning("left_behind_was_removed", sandboxes=list(tidied.ended), folders=tidied.folders)

    def _bind(self, sandbox: LocalSandbox, owner: SandboxOwner, worker: Worker, on_gone: OnGone, *, was_made: bool) -> Attachment:
        """No step of it waits: a connection that ends meanwhile finds the attachment, or the provider's undoing does."""
        attachment = Attachment(sandbox=sandbox, owner=owner, worker=worker, was_made=was_made, since_s=time.time(), on_gone=on_gone)
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
        self._see_whether_empty()
        attachment.on_gone(attachment.why or why, bool(attachment.why))

    async def _end_lost(self, attachment: Attachment) -> None:
        sandbox, owner = attachment.sandbox, attachment.owner
        keeps = not attachment.was_made and not sandbox.is_changed
        try:
            with contextlib.suppress(SandboxGone):  # it ended by itself, or somebody was faster
                await (sandbox.give_back() if keeps else sandbox.kill())
            if not keeps:  # it may have been just being parked, for a worker that never heard of it
                await self._tear_down(attachment.sandbox_id)
        except SandboxError as error:
            self.note_leak(error)
            log.error("lost_sandbox_not_removed", sandbox=attachment.sandbox_id, job_id=owner.job_id, error=str(error))
        else:
            log.info("sandbox_lost", sandbox=attachment.sandbox_id, job_id=owner.job_id, attempt=owner.attempt, waits_on=keeps)

    async def _end_one(self, sandbox_id: str, why: str) -> None:
        attachment = self.attached.get(sandbox_id)
        if attachment is not None:
            attachment.why = attachment.why or why
            await attachment.sandbox.kill()
        if SANDBOX_ID.fullmatch(sandbox_id):
            await self._tear_down(sandbox_id)

    async def _tear_down(self, sandbox_id: str) -> None:
        """Ends what is left of a sandbox; one that is not there has ended."""
        with contextlib.suppress(SandboxGone):
            await tear_down(await asyncio.to_thread(SandboxFolder.open, self.provider.scratch_dir / sandbox_id))

    def _read_owners(self) -> list[OwnedSandbox]:
        found = []
        for path in sandbox_paths(self.provider.scratch_dir):
            with contextlib.suppress(SandboxGone):
                owner = SandboxFolder.open(path).record.owner
                found.append(OwnedSandbox(sandbox_id=path.name, job_id=owner.job_id, attempt=owner.attempt, boot_id=owner.boot_id))
        return found


class _Source:
    """Where warm sandboxes come from, and how they change hands."""

    def __init__(self, starts: Starts, provider: LocalSandboxes) -> None:
        self._starts = starts
        self.hand_over = provider.hand_over

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox:
        return await self._starts.start(spec, owner, spare=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    """A fault of ours: said when it happens, raised when the node is left."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("node_task_failed", task=task.get_name(), exc_info=error)
