"""Sandboxes that this process owns, of whatever backend: makes them, attaches to parked ones, ends them.

A start is: what earlier attempts left is torn down, the folder is made and named, its lease is taken, a holder is put under it. Each step
undoes itself when a later one fails or its caller is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
import zmq.asyncio

from pipeline.folders import make_private_folder, socket_path
from workers.sandbox.base import Probe
from workers.sandbox.errors import SandboxError, SandboxGone, SandboxStartError, StaleAttempt
from workers.sandbox.kernel_connection import kernel_context
from workers.sandbox.local.backend import Backend
from workers.sandbox.local.folder import SANDBOX_ID, SandboxFolder, job_prefix, sandbox_paths
from workers.sandbox.local.holder_client import Holder
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.local.teardown import tear_down, tear_down_now
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec

LONGEST_SOCKET = "0123456789-1234567890-012345/k-0123456789abcdef/01234567-1"
"""Below the run folder: id of the sandbox, folder of a named kernel, socket."""
MIN_FREE_BYTES = 256 * 1024 * 1024
"""Below this a new sandbox would only fill the disk for those that run."""

log = structlog.get_logger(__name__)


class LocalSandboxes:
    """Starts and attaches sandboxes of one backend on this node.

    Args:
        backend: what builds the walls.
        scratch_dir: where sandboxes live; on a disk of this node.
        run_dir: where their sockets live; short. Both are made when missing, and only this user may enter them.
        node: name of this node; handles of other nodes are refused.
    """

    def __init__(self, backend: Backend, *, scratch_dir: Path, run_dir: Path, node: str) -> None:
        self._backend = backend
        self.scratch_dir = scratch_dir.absolute()
        self.run_dir = run_dir.absolute()
        self.node = node
        self._context: zmq.asyncio.Context | None = None
        self._attached: set[LocalSandbox] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        socket_path(self.run_dir, LONGEST_SOCKET)  # too long is said now, not when the first kernel starts

    @property
    def backend(self) -> str:
        return self._backend.name

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(make_private_folder, self.scratch_dir, "ROLLSTREAM_SCRATCH_DIR")
        await asyncio.to_thread(make_private_folder, self.run_dir)
        self._context = kernel_context()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        ends = [sandbox.kill() for sandbox in self._attached]
        problems = [problem for problem in await asyncio.gather(*ends, *self._abandoned, return_exceptions=True) if problem is not None]
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
        if problems:
            raise problems[0]

    async def settle(self) -> None:
        """Until nothing is left of starts and attachments whose callers were cancelled."""
        await asyncio.gather(*self._abandoned, return_exceptions=True)

    async def probe(self) -> Probe:
        why = ""
        owner = SandboxOwner(job_id=f"probe:{secrets.token_hex(8)}", attempt=1, boot_id="probe")
        try:
            async with await self.start(SandboxSpec(isolation=min(self._backend.isolation)), owner) as sandbox:
                result = await sandbox.exec("exit 7", timeout_s=10)
                if result.returncode != 7:
                    why = f"bash -c 'exit 7' gave {result.returncode}: {result.stderr_text.strip()}"
        except SandboxError as error:
            why = str(error)
        return Probe(backend=self.backend, works=not why, isolation=self._backend.isolation, why=why)

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox:
        refused = self._backend.refuse(spec)
        if refused:
            raise SandboxStartError(self.backend, refused, retryable=False)
        starting = asyncio.create_task(self._start(spec, owner), name=f"start sandbox of {owner.job_id}")
        return await self._finish_or_abandon(starting, parks=False)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> LocalSandbox:
        if handle.backend != self.backend or handle.node != self.node:
            where = f"it lives on node {handle.node!r} ({handle.backend}), this is {self.node!r} ({self.backend})"
            raise SandboxGone(handle.sandbox_id, where)
        path = self.scratch_dir / handle.sandbox_id
        # a name of our own making and nothing else: `..` is a child of every folder
        if not SANDBOX_ID.fullmatch(handle.sandbox_id) or Path(handle.folder) != path:
            raise SandboxGone(handle.sandbox_id, f"{handle.folder} is no sandbox below {self.scratch_dir}")
        attaching = asyncio.create_task(self._attach(handle, owner), name=f"attach sandbox {handle.sandbox_id}")
        return await self._finish_or_abandon(attaching, parks=True)

    # -- steps ------------------------------------------------------------------------------------------------------------------------

    async def _start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox:
        await asyncio.to_thread(self._end_earlier, owner)
        try:
            folder, token = await asyncio.to_thread(self._make_folder, spec, owner)
        except OSError as error:
            raise SandboxStartError(self.backend, f"no folder below {self.scratch_dir}: {error}") from error
        handle = SandboxHandle(backend=self.backend, node=self.node, sandbox_id=folder.sandbox_id, folder=str(folder.path), token=token)
        try:
            return await self._hold(folder, handle, owner)
        except BaseException:
            await tear_down(folder)
            raise

    async def _attach(self, handle: SandboxHandle, owner: SandboxOwner) -> LocalSandbox:
        folder = await asyncio.to_thread(SandboxFolder.open, Path(handle.folder))
        return await self._hold(folder, handle, owner)

    async def _hold(self, folder: SandboxFolder, handle: SandboxHandle, owner: SandboxOwner) -> LocalSandbox:
        """Takes the lease, and puts a holder under it."""
        assert self._context is not None, "enter the provider first"
        env, limits = await asyncio.to_thread(folder.wishes)
        lease = await asyncio.to_thread(folder.claim, owner, handle.token)
        try:
            holder = await Holder.start(
                folder.sandbox_id, lease_fd=lease, children_file=folder.children_file, log_file=folder.log_file, limits=limits
            )
        finally:
            os.close(lease)
        try:
            identity = holder.identity
            if identity is None:
                raise SandboxGone(folder.sandbox_id, "its holder ended as it started")
            await asyncio.to_thread(folder.record_holder, identity)
        except BaseException:
            holder.begin_end(0.0)
            await holder.wait_ended()
            raise
        sandbox = LocalSandbox(folder, handle, env, holder, owner.attempt, self._context)
        self._attached.add(sandbox)
        holder.gone.add_done_callback(lambda _: self._attached.discard(sandbox))
        return sandbox

    async def _finish_or_abandon(self, making: asyncio.Task[LocalSandbox], *, parks: bool) -> LocalSandbox:
        """A caller that is cancelled leaves nothing half made: what comes of it is ended as soon as it is there."""
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            undoing = asyncio.create_task(_undo(making, parks=parks), name=f"undo: {making.get_name()}")
            self._abandoned.add(undoing)
            undoing.add_done_callback(self._abandoned.discard)
            raise

    # -- blocking ---------------------------------------------------------------------------------------------------------------------

    def _end_earlier(self, owner: SandboxOwner) -> None:
        for path in sandbox_paths(self.scratch_dir, job_prefix(owner.job_id)):
            try:
                folder = SandboxFolder.open(path)
                seen = folder.state().seen_attempt
            except SandboxGone:  # removed by a sweep just now
                continue
            if seen > owner.attempt:
                raise StaleAttempt(folder.sandbox_id, owner.attempt, seen)
            tear_down_now(folder)

    def _make_folder(self, spec: SandboxSpec, owner: SandboxOwner) -> tuple[SandboxFolder, str]:
        free = shutil.disk_usage(self.scratch_dir).free
        if free < MIN_FREE_BYTES:
            raise SandboxStartError(self.backend, f"{self.scratch_dir} has {free:,} bytes left, at least {MIN_FREE_BYTES:,} are wanted")
        return SandboxFolder.create(self.scratch_dir, self.run_dir, spec, owner, backend=self.backend, node=self.node)


async def _undo(making: asyncio.Task[LocalSandbox], *, parks: bool) -> None:
    try:
        sandbox = await making
    except SandboxError:
        return
    try:
        if parks:
            await sandbox.park()
        else:
            await sandbox.kill()
    except SandboxGone:  # somebody removed it meanwhile, with its job: there is nothing to end any more
        return
