"""One attachment to a sandbox that this process owns.

The lease is the holder's: from its start to its end this object may act, afterwards every call raises `SandboxGone`.
"""

from __future__ import annotations

import asyncio
import errno
import os.path
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, ParamSpec, Protocol, Self, TypeVar

import structlog

from workers.sandbox.base import DEFAULT_ARCHIVE_BYTES, DEFAULT_FILE_BYTES, DEFAULT_OUTPUT_BYTES, Kernel, Shell
from workers.sandbox.errors import SandboxError, SandboxFileError, SandboxGone, SandboxLeak, SnapshotError
from workers.sandbox.execute import execute
from workers.sandbox.kernel import IpcKernel
from workers.sandbox.kernel_connection import KernelProgram
from workers.sandbox.launcher import LaunchedProcess, Launcher, SharedFolder
from workers.sandbox.limits import Watch
from workers.sandbox.local.folder import SandboxFolder
from workers.sandbox.local.freeze import Freeze, NotFrozenError
from workers.sandbox.local.groups import end_groups_of
from workers.sandbox.local.holder_client import Holder
from workers.sandbox.local.identity import LINUX, ProcessIdentity
from workers.sandbox.local.pause import Pause, to_its_end
from workers.sandbox.local.snapshots import Snapshots
from workers.sandbox.local.teardown import check_unmounted, end_survivors, survivors
from workers.sandbox.local.with_notices import WatchedKernel, WatchedShell
from workers.sandbox.results import ExecResult, FileEntry
from workers.sandbox.shell import PtyShell
from workers.sandbox.spec import SandboxHandle, SandboxOwner, Snapshot
from workers.sandbox.use import SandboxUse

if TYPE_CHECKING:
    import zmq.asyncio

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
SESSION_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
MAKE_FOLDER_TIMEOUT_S = 10.0
END_TIMEOUT_S = 10.0
"""Killed processes are gone in milliseconds; what is left after this hangs in the kernel."""


class Files(Protocol):
    """The files of one sandbox. Blocks; called in threads, several at once."""

    def read(self, path: str, max_bytes: int) -> bytes: ...

    def write(self, path: str, content: bytes, *, executable: bool) -> None: ...

    def list(self, path: str) -> tuple[FileEntry, ...]: ...

    def upload(self, tar: IO[bytes], folder: str, max_bytes: int) -> None: ...

    def download(self, path: str, tar: IO[bytes], max_bytes: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a sandbox looks like to what runs in it."""

    workdir: str
    env: Mapping[str, str]
    given: SharedFolder
    sockets: SharedFolder
    kernel: KernelProgram
    walls: bool


class LocalSandbox:
    """A folder, and processes below a holder."""

    def __init__(
        self,
        folder: SandboxFolder,
        handle: SandboxHandle,
        inside: Inside,
        holder: Holder,
        launcher: Launcher,
        files: Files,
        attempt: int,
        context: zmq.asyncio.Context,
        watch: Watch,
        snapshots: Snapshots,
    ) -> None:
        self._folder = folder
        self._handle = handle
        self._inside = inside
        self._holder = holder
        self._files = files
        self._attempt = attempt
        self._context = context
        self._watch = watch
        self._snapshots = snapshots
        self._pause = Pause()
        self._taking: set[asyncio.Task[Snapshot]] = set()
        self._shells: dict[str, Shell] = {}
        self._kernels: dict[str, Kernel] = {}
        self._starter = launcher
        self._launcher = _ChangeNotingLauncher(self, launcher)
        self._closed = ""
        self._ending: asyncio.Task[None] | None = None
        self._changing: asyncio.Future[None] | None = None

    @property
    def handle(self) -> SandboxHandle:
        return self._handle

    @property
    def workdir(self) -> str:
        return self._inside.workdir

    @property
    def keeper(self) -> ProcessIdentity | None:
        """PID 1 of the sandbox, by the node's numbers; None without walls."""
        return self._holder.keeper

    def shell(self, name: str = "main") -> Shell:
        _check_name(name)
        if name not in self._shells:
            given = self._inside.given.subfolder(f"sh-{name}")
            self._shells[name] = WatchedShell(PtyShell(self._launcher, given, self._inside.env, self.workdir), self._watch)
        return self._shells[name]

    def kernel(self, name: str = "main") -> Kernel:
        _check_name(name)
        if name not in self._kernels:
            inside = self._inside
            given, sockets = inside.given.subfolder(f"k-{name}"), inside.sockets.subfolder(name)
            kernel = IpcKernel(self._launcher, inside.kernel, given, sockets, inside.env, self.workdir, self._context)
            self._kernels[name] = WatchedKernel(kernel, self._watch)
        return self._kernels[name]

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        await self._watch.quiet()
        told = self._watch.notices.told
        result = await execute(
            self._launcher,
            command,
            stdin=stdin,
            cwd=os.path.join(self.workdir, cwd) if cwd else self.workdir,
            env={**self._inside.env, **(env or {})},
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        return replace(result, notices=self._watch.take_notices(told))

    async def upload(self, tar: IO[bytes], folder: str = ".", *, max_bytes: int = DEFAULT_ARCHIVE_BYTES) -> None:
        await self._change_files(self._files.upload, tar, folder, max_bytes)

    async def download(self, path: str, tar: IO[bytes], *, max_bytes: int = DEFAULT_ARCHIVE_BYTES) -> None:
        await self._in_thread(self._files.download, path, tar, max_bytes)

    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        return await self._in_thread(self._files.read, path, max_bytes)

    async def write_file(self, path: str, content: bytes, *, executable: bool = False) -> None:
        await self._change_files(partial(self._files.write, executable=executable), path, content)

    async def list(self, path: str = ".") -> Sequence[FileEntry]:
        return await self._in_thread(self._files.list, path)

    async def use(self) -> SandboxUse:
        return self._watch.use()

    async def snapshot(self) -> Snapshot:
        self.check_open()
        taking = asyncio.create_task(self._take_snapshot(), name=f"snapshot of {self._folder.sandbox_id}")
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            if taking.cancelled():  # it was our end that cancelled it
                self.check_open()
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled() and taking.exception() is None:
                await self._snapshots.drop(SandboxFolder.open(Path(taking.result().folder)))
            raise

    async def park(self) -> SandboxHandle:
        self.check_open()
        await self._end("it was parked", 0.0, remove=False)
        return self._handle

    async def give_back(self) -> None:
        """As `park`, of one that nobody used: the lease is free afterwards, also when its holder had ended already."""
        await self._end("it was given back", 0.0, remove=False)

    async def stop(self, *, grace_s: float = 0.5) -> None:
        await self._end("it was stopped", grace_s, remove=True)

    async def kill(self) -> None:
        await self._end("it was killed", 0.0, remove=True)

    async def wait_gone(self) -> str:
        why = await asyncio.shield(self._holder.gone)
        return self._closed or why

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._closed:
            await (self.stop() if kind is None else self.kill())

    @property
    def folder(self) -> SandboxFolder:
        """What it is on disk."""
        return self._folder

    @property
    def is_changed(self) -> bool:
        """Whether this attachment may have changed something."""
        return self._changing is not None

    @property
    def ending(self) -> asyncio.Task[None] | None:
        """Its end, once it was ordered."""
        return self._ending

    def belongs_to(self, owner: SandboxOwner) -> None:
        """It was given to that attempt, on disk (`SandboxFolder.give`); the attachment goes on as it is.

        Raises:
            SandboxGone
        """
        self._attempt = owner.attempt
        self.check_open()

    @property
    def pause(self) -> Pause:
        """What holds changes of ours back while a snapshot is taken."""
        return self._pause

    # -- for this package -----------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises `SandboxGone` when this attachment is over."""
        if self._closed:
            raise SandboxGone(self._folder.sandbox_id, self._closed)
        if self._holder.gone.done():
            raise SandboxGone(self._folder.sandbox_id, self._holder.gone.result())
        self._starter.check_open()

    async def note_change(self) -> None:
        """Writes down that this attempt changes the sandbox, before its first effect; later calls cost nothing."""
        self.check_open()
        if self._changing is None:
            self._changing = asyncio.ensure_future(asyncio.to_thread(self._folder.change_state, changed_by=self._attempt))
        await asyncio.shield(self._changing)
        self.check_open()

    async def restore_folders(self, problem: OSError) -> bool:
        """Makes the home folder again for whoever deleted it; False when it was there, or cannot be made.

        Args:
            problem: what a program could not be started for.
        """
        if not self._inside.walls:
            return await self._in_thread(self._folder.restore)
        if not str(problem.strerror).startswith(f"folder {self.workdir}"):
            return False
        made = await execute(
            self._starter,
            ["mkdir", "-p", "--", self.workdir],
            stdin=b"",
            cwd="/",
            env=self._inside.env,
            timeout_s=MAKE_FOLDER_TIMEOUT_S,
            max_output_bytes=1024,
        )
        return made.returncode == 0

    async def _take_snapshot(self) -> Snapshot:
        holder = self._holder.identity
        if not LINUX:
            raise SnapshotError(self._folder.sandbox_id, "processes cannot be held still for it on this system")
        async with self._pause.hold():
            self.check_open()
            if holder is None:  # it has ended, and will be heard of
                raise SandboxGone(self._folder.sandbox_id, await self.wait_gone())
            freeze = Freeze(holder, self.keeper.pid if self.keeper else 0)
            try:
                await to_its_end(freeze.stop)
                return await self._snapshots.take(self._folder, self._attempt, self.check_open)
            except NotFrozenError as error:
                raise SnapshotError(self._folder.sandbox_id, str(error), retryable=True) from error
            finally:
                await to_its_end(freeze.let_go)

    async def _change_files(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `_in_thread`, for work that changes files: no snapshot is taken before the thread is done, cancelled or not."""
        await self.note_change()
        await self._pause.begin()
        working = asyncio.ensure_future(self._in_thread(work, *args, **kwargs))
        working.add_done_callback(lambda _: self._pause.end())
        working.add_done_callback(lambda done: done.cancelled() or done.exception())  # read: a cancelled caller waits for it no more
        return await asyncio.shield(working)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.check_open()
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except (SandboxFileError, SandboxError):
            self.check_open()  # a path that is missing because the sandbox is
            raise

    async def _end(self, why: str, grace_s: float, *, remove: bool) -> None:
        """Ends this attachment once; who asks again, also after a cancel, waits for the same end."""
        if self._ending is None:
            self._closed = why
            self._ending = asyncio.create_task(self._do_end(grace_s, remove), name=f"end of sandbox {self._folder.sandbox_id}")
        await asyncio.shield(self._ending)

    async def _do_end(self, grace_s: float, remove: bool) -> None:
        taking = set(self._taking)
        for each in taking:
            each.cancel()
        if taking:
            await asyncio.wait(taking)
        self._holder.begin_end(grace_s)
        try:
            async with asyncio.timeout(grace_s + END_TIMEOUT_S):
                await self._holder.wait_ended()
        except TimeoutError:
            left = await asyncio.to_thread(survivors, self._folder)
            holder = self._holder.identity
            raise SandboxLeak(self._folder.sandbox_id, tuple(each.pid for each in (holder, *left) if each is not None)) from None
        self._watch.finish(self._holder.reaped_cpu_s)
        for shell in self._shells.values():
            await shell.close()
        for kernel in self._kernels.values():
            await kernel.close()
        await asyncio.to_thread(self._files.close)
        if not self._holder.left_nothing:
            await asyncio.to_thread(end_survivors, self._folder)
        await asyncio.to_thread(end_groups_of, self._folder.path)
        await asyncio.to_thread(check_unmounted, self._folder)
        if remove:
            try:
                await asyncio.to_thread(self._folder.remove)
            except OSError as error:  # no process runs, and the folder has lost its name: the next sweep tries again
                log.warning("sandbox_folder_left", sandbox=self._folder.sandbox_id, error=str(error))
        else:
            cpu_used_s = self._watch.use().cpu_s
            await asyncio.to_thread(partial(self._folder.change_state, changed_by=0, holder_pid=0, holder_started=0, cpu_used_s=cpu_used_s))


class _ChangeNotingLauncher:
    """What starts processes, as shells, kernels and commands see it: whatever they start is a change that is written down first."""

    def __init__(self, sandbox: LocalSandbox, starter: Launcher) -> None:
        self._sandbox = sandbox
        self._starter = starter
        self.kill = starter.kill
        self.check_open = sandbox.check_open

    @property
    def gone(self) -> asyncio.Future[str]:
        return self._starter.gone

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> LaunchedProcess:
        await self._sandbox.note_change()
        async with self._sandbox.pause.change():
            try:
                return await self._starter.spawn(argv, env=env, cwd=cwd, fds=fds)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR) or not await self._sandbox.restore_folders(error):
                    raise
                return await self._starter.spawn(argv, env=env, cwd=cwd, fds=fds)

    async def spawn_pty(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, rows: int, columns: int, fds: Mapping[int, int]
    ) -> tuple[LaunchedProcess, int]:
        await self._sandbox.note_change()
        async with self._sandbox.pause.change():
            return await self._starter.spawn_pty(argv, env=env, cwd=cwd, rows=rows, columns=columns, fds=fds)


def _check_name(name: str) -> None:
    if not SESSION_NAME.fullmatch(name):
        raise ValueError(f"name of a shell or kernel: expected lower-case letters, digits and dashes, at most 16, got {name!r}")
