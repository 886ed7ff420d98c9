"""Sandboxes that this process owns, of whatever backend: makes them, attaches to parked ones, ends them.

A start is: what earlier attempts left is torn down, the folder is made and named, its lease is taken, a holder is put under it, and the
holder builds the walls. Each step undoes itself when a later one fails or its caller is cancelled. Parking ends all of that but the folder,
so attaching builds the walls anew, over what the first attachment changed (10 ms with bubblewrap): the lease then needs no one to hold it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, cast

import structlog

from pipeline.failpoints import failpoint
from pipeline.folders import make_private_folder, socket_path
from workers.sandbox import inside as execution
from workers.sandbox.base import Probe
from workers.sandbox.errors import BadImage, NotServedHere, SandboxError, SandboxGone, SandboxStartError
from workers.sandbox.images import ImageLease, ImageSource
from workers.sandbox.kernel_connection import BOOT_SCRIPT, KernelProgram
from workers.sandbox.launcher import Launcher, SharedFolder
from workers.sandbox.limits import WATCHES, Cgroups, Watchdog, Watched, enforced_by, find_cgroups
from workers.sandbox.local.attempts import Attempts
from workers.sandbox.local.backend import GIVEN_INSIDE, MOUNT_POINTS, SOCKETS_INSIDE, Backend, Walls
from workers.sandbox.local.entered_files import EnteredFiles
from workers.sandbox.local.environment import INSIDE_PATH, library_paths, sandbox_environment
from workers.sandbox.local.files import ConfinedFiles
from workers.sandbox.local.folder import SANDBOX_ID, SandboxFolder
from workers.sandbox.local.groups import end_groups_of, make_groups
from workers.sandbox.local.holder.keeper import keeper_argv
from workers.sandbox.local.holder_client import Holder
from workers.sandbox.local.image_bash import why_no_bash
from workers.sandbox.local.kernel_surface import seccomp_filter
from workers.sandbox.local.node_root import NodeRoot
from workers.sandbox.local.sandbox import Files, Inside, LocalSandbox
from workers.sandbox.local.snapshots import Snapshots
from workers.sandbox.local.spare_holder import SpareHolder
from workers.sandbox.local.teardown import tear_down
from workers.sandbox.local.way_out import open_way_out
from workers.sandbox.network import AllowListProxy, proxy_variables
from workers.sandbox.spec import Isolation, SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

if TYPE_CHECKING:
    import zmq.asyncio

LONGEST_SOCKET = "0123456789-1234567890-012345/s/0123456789abcdef/01234567-1"
"""Below the run folder: id of the sandbox, folder of a named kernel, socket."""
DEFAULT_WORKDIR = "/workspace"
NOT_WANTED = "its start was cancelled"
MIN_FREE_BYTES = 256 * 1024 * 1024
"""Below this a new sandbox would only fill the disk for those that run."""

Entry = Literal["outside", "inside"]

log = structlog.get_logger(__name__)


class LocalSandboxes:
    """Starts and attaches sandboxes of one backend on this node.

    Args:
        backend: what builds the walls.
        scratch_dir: where sandboxes live; on a disk of this node.
        run_dir: where their sockets live; short. Both are made when missing, and only this user may enter them.
        node: name of this node; handles of other nodes are refused.
        images: where images come from; without it, specs that name one are refused.
        entry: `outside` = what runs behind walls enters them; `inside` = PID 1 starts it (ADR 20).
        keeps_spare: keep a holder ready, for the next start (`spare_holder.py`).
        cgroups: finds where groups may be made; `Cgroups` = nowhere, so that the watchdog bounds all. Called in a thread.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        scratch_dir: Path,
        run_dir: Path,
        node: str,
        images: ImageSource | None = None,
        entry: Entry = "outside",
        keeps_spare: bool = False,
        cgroups: Callable[[], Cgroups] = find_cgroups,
    ) -> None:
        self._backend = backend
        self._entry = entry
        self._images = images
        self.scratch_dir = scratch_dir.absolute()
        self.run_dir = run_dir.absolute()
        self.node = node
        self._context: zmq.asyncio.Context | None = None
        self.spare = SpareHolder() if keeps_spare else None
        self._watchdog = Watchdog(self.scratch_dir)
        self._find_cgroups = cgroups
        self._cgroups = Cgroups()
        self._snapshots = Snapshots(self.scratch_dir, floor_bytes=MIN_FREE_BYTES)
        self._attached: set[LocalSandbox] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._unwanted: set[asyncio.Task[LocalSandbox]] = set()
        """Starts and attachments that nobody waits for any more."""
        self._holders: dict[asyncio.Task[LocalSandbox], Holder] = {}
        """Of those that are coming up."""
        self._attempts = Attempts(self.scratch_dir)
        socket_path(self.run_dir, LONGEST_SOCKET)  # too long is said now, not when the first kernel starts

    @property
    def backend(self) -> str:
        return self._backend.name

    @property
    def cgroups(self) -> Mapping[str, str]:
        """Controller of control groups -> its version here, or why it is not ours to use. Empty before the provider is entered."""
        return {**{name: f"version {base.version}" for name, base in self._cgroups.bases.items()}, **self._cgroups.missing}

    async def __aenter__(self) -> Self:
        from workers.sandbox.kernel_client import kernel_context  # workers, which hold no sandboxes of their own, do without

        await asyncio.to_thread(make_private_folder, self.scratch_dir, "ROLLSTREAM_SANDBOX_SCRATCH_DIR")
        await asyncio.to_thread(make_private_folder, self.run_dir, "ROLLSTREAM_SANDBOX_RUN_DIR")
        self._context = kernel_context()
        self._cgroups = await asyncio.to_thread(self._find_cgroups)
        await self._watchdog.__aenter__()
        if self.spare is not None:
            self.spare.refill()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        ends = [sandbox.kill() for sandbox in self._attached]
        problems = [problem for problem in await asyncio.gather(*ends, *self._abandoned, return_exceptions=True) if problem is not None]
        await self.settle()
        if self.spare is not None:
            await self.spare.close()
        await self._watchdog.__aexit__(None, None, None)
        await asyncio.to_thread(self._cgroups.close)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
        if problems:
            raise problems[0]

    async def settle(self) -> None:
        """Until nothing is left of starts and attachments whose callers were cancelled, and of the ways out of those that have ended."""
        await asyncio.gather(*self._abandoned, return_exceptions=True)

    def holds(self, sandbox_id: str) -> bool:
        """Whether a sandbox is attached here, or being parked or ended: then it is not for others to touch."""
        return any(sandbox.handle.sandbox_id == sandbox_id for sandbox in self._attached)

    async def hand_over(self, sandbox: LocalSandbox, owner: SandboxOwner) -> None:
        """Gives one that was made for `POOL_JOB` to an attempt, on disk too; what earlier attempts left is torn down first.

        Raises:
            SandboxGone: it has ended, or its image's name means something else by now.
            StaleAttempt: as from `start`.
        """
        sandbox.check_open()
        await asyncio.to_thread(self._give, sandbox.folder, owner)
        sandbox.belongs_to(owner)

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
        served = self._backend.isolation - ({Isolation.ISOLATED_NETWORK} if self._entry == "inside" else set())
        return Probe(backend=self.backend, works=not why, isolation=served, why=why)

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox:
        refused = self._backend.refuse(spec)
        if spec.isolation is Isolation.ISOLATED_NETWORK and not refused and self._entry == "inside":
            refused = "the task asks for isolation 'isolated+network', and the way out is opened by entering, which this node does not do"
        if spec.image and not refused and self._images is None:
            refused = f"the task asks for image {spec.image!r}, and this node has no image store"
        if refused:
            raise NotServedHere(self.backend, refused)
        starting = asyncio.create_task(self._start(spec, owner), name=f"start sandbox of {owner.job_id}")
        return await self._finish_or_abandon(starting, parks=False)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> LocalSandbox:
        self._check_ours(handle.sandbox_id, handle.folder, handle.backend, handle.node)
        attaching = asyncio.create_task(self._attach(handle, owner), name=f"attach sandbox {handle.sandbox_id}")
        return await self._finish_or_abandon(attaching, parks=True)

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> LocalSandbox:
        self._check_ours(snapshot.snapshot_id, snapshot.folder, snapshot.backend, snapshot.node)
        restoring = asyncio.create_task(self._restore(snapshot, owner), name=f"restore snapshot {snapshot.snapshot_id}")
        return await self._finish_or_abandon(restoring, parks=False)

    async def drop(self, snapshot: Snapshot, owner: SandboxOwner) -> None:
        with contextlib.suppress(SandboxGone):
            self._check_ours(snapshot.snapshot_id, snapshot.folder, snapshot.backend, snapshot.node)
            await self._snapshots.drop(await asyncio.to_thread(self._snapshots.open, snapshot, owner))

    def _check_ours(self, sandbox_id: str, folder: str, backend: str, node: str) -> None:
        """Raises `SandboxGone` for what was made elsewhere."""
        if backend != self.backend or node != self.node:
            raise SandboxGone(sandbox_id, f"it lives on node {node!r} ({backend}), this is {self.node!r} ({self.backend})")
        # a name of our own making and nothing else: `..` is a child of every folder
        if not SANDBOX_ID.fullmatch(sandbox_id) or Path(folder) != self.scratch_dir / sandbox_id:
            raise SandboxGone(sandbox_id, f"{folder} is no sandbox below {self.scratch_dir}")

    # -- steps ------------------------------------------------------------------------------------------------------------------------

    async def _start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox:
        await asyncio.to_thread(self._attempts.end_earlier, owner)
        image = await self._lease_image(spec)
        try:
            try:
                folder, token = await asyncio.to_thread(self._make_folder, spec, owner, image.digest if image else "")
            except OSError as error:
                raise SandboxStartError(self.backend, f"no folder below {self.scratch_dir}: {error}") from error
            handle = SandboxHandle(backend=self.backend, node=self.node, sandbox_id=folder.sandbox_id, folder=str(folder.path), token=token)
            try:
                await asyncio.to_thread(self._attempts.end_rivals, folder, owner)
                return await self._hold(folder, handle, owner, spec, image)
            except _NothingStartsError:
                await tear_down(folder)
                why = await asyncio.to_thread(why_no_bash, image.root) if image is not None else ""
                if why:  # the next node would try in vain too, and this one is not ill
                    raise BadImage(spec.image, why) from None
                raise
            except SandboxGone as error:
                await tear_down(folder)
                await asyncio.to_thread(self._attempts.refuse_stale, owner)  # who ended it may be a later attempt: then that is why
                raise SandboxStartError(self.backend, f"it ended as it came up: {error.why}") from error
            except BaseException:
                await tear_down(folder)
                raise
        finally:
            if image is not None:
                image.close()

    async def _attach(self, handle: SandboxHandle, owner: SandboxOwner) -> LocalSandbox:
        folder = await asyncio.to_thread(SandboxFolder.open, Path(handle.folder))
        spec, digest = await asyncio.to_thread(folder.wishes)
        image = await self._lease_image(spec)
        try:
            if image is not None and image.digest != digest:
                raise SandboxGone(handle.sandbox_id, f"it was made from another content of image {spec.image!r} than that name has now")
            return await self._hold(folder, handle, owner, spec, image)
        except _NothingStartsError as error:
            raise SandboxGone(handle.sandbox_id, f"nothing starts any more over what was changed in it: {error.why}") from error
        finally:
            if image is not None:
                image.close()

    async def _restore(self, snapshot: Snapshot, owner: SandboxOwner) -> LocalSandbox:
        taken = await asyncio.to_thread(self._snapshots.open, snapshot, owner)
        await asyncio.to_thread(self._attempts.end_older, owner)
        spec, digest = await asyncio.to_thread(taken.wishes)
        image = await self._lease_image(spec)
        try:
            if image is not None and image.digest != digest:
                raise SandboxGone(snapshot.snapshot_id, f"it was made over another content of image {spec.image!r} than that name has now")
            try:
                folder, token = await asyncio.to_thread(self._make_folder, spec, owner, digest)
            except OSError as error:
                raise SandboxStartError(self.backend, f"no folder below {self.scratch_dir}: {error}") from error
            handle = SandboxHandle(backend=self.backend, node=self.node, sandbox_id=folder.sandbox_id, folder=str(folder.path), token=token)
            try:
                await self._snapshots.fill(folder, taken)
                await asyncio.to_thread(self._attempts.end_older, owner)  # as the second look of a start
                return await self._hold(folder, handle, owner, spec, image)
            except BaseException as error:
                await tear_down(folder)
                if isinstance(error, _NothingStartsError):
                    raise SandboxGone(snapshot.snapshot_id, f"nothing starts over what was changed in it: {error.why}") from error
                raise
        finally:
            if image is not None:
                image.close()

    async def _lease_image(self, spec: SandboxSpec) -> ImageLease | None:
        if not spec.image:
            return None
        if self._images is None:
            raise SandboxStartError(self.backend, f"image {spec.image!r} is wanted, and this node has no image store", retryable=False)
        return await asyncio.to_thread(self._images.lease, spec.image)

    async def _hold(
        self, folder: SandboxFolder, handle: SandboxHandle, owner: SandboxOwner, spec: SandboxSpec, image: ImageLease | None
    ) -> LocalSandbox:
        """Takes the lease, puts a holder under it, and builds the walls."""
        assert self._context is not None, "enter the provider first"
        lease = await asyncio.to_thread(folder.claim, owner, handle.token)
        failpoint("node_leased")
        try:
            leases = [lease] if image is None else [lease, image.fileno()]
            holder = await Holder.start(
                folder.sandbox_id,
                leases=leases,
                children_file=folder.children_file,
                log_file=folder.log_file,
                limits=spec.limits,
                spare=self.spare.take() if self.spare is not None else None,
            )
        except FileNotFoundError as error:  # a later attempt, or whoever knows that the job is over, was faster
            raise SandboxGone(folder.sandbox_id, "its folder was removed") from error
        finally:
            os.close(lease)
        making = cast("asyncio.Task[LocalSandbox]", asyncio.current_task())
        self._holders[making] = holder
        failpoint("node_held")
        try:
            if making in self._unwanted:
                raise SandboxGone(folder.sandbox_id, NOT_WANTED)
            identity = holder.identity
            if identity is None:
                raise SandboxGone(folder.sandbox_id, "its holder ended as it started")
            state = await asyncio.to_thread(folder.record_holder, identity)
            failpoint("node_holder_noted")
            cgroup = await asyncio.to_thread(make_groups, self._cgroups, folder.path, spec.limits)
            holder.groups = cgroup.entries if cgroup is not None else ()
            inside, launcher, files = await self._build(folder, spec, image, holder)
            failpoint("node_walled")
            holder.gone.add_done_callback(lambda _: files.close())
            proxy = self._proxy(spec, inside, folder.sandbox_id, lambda notice: watch.tell(notice))
            watch = self._watchdog.watch(
                Watched(
                    sandbox_id=folder.sandbox_id,
                    limits=spec.limits,
                    holder_pid=identity.pid,
                    keeper_pid=holder.keeper.pid if holder.keeper else 0,
                    starter_pid=holder.keeper.pid if holder.keeper and self._entry == "inside" else 0,
                    folders=(*(folder.path / name for name in ("home", "shm", "tmp", "upper", "var-tmp")), folder.sockets),
                    cgroup=cgroup,
                    cpu_used_s=state.cpu_used_s,
                    enforced=enforced_by(
                        cgroup,
                        pid_max="processes" in holder.bounds,
                        watched=WATCHES,
                        network=_network(inside, proxy),
                        own_ipc="ipc" in holder.bounds,
                    ),
                    network=proxy.use if proxy is not None else lambda: (0, 0),
                )
            )
            holder.gone.add_done_callback(lambda _: watch.close())
            if proxy is not None:
                await self._open_way_out(proxy, holder)
        except BaseException:
            holder.begin_end(0.0)
            await holder.wait_ended()
            await asyncio.to_thread(end_groups_of, folder.path)
            raise
        finally:
            del self._holders[making]
            if self.spare is not None:
                self.spare.refill_soon()
        sandbox = LocalSandbox(folder, handle, inside, holder, launcher, files, owner.attempt, self._context, watch, self._snapshots)
        self._attached.add(sandbox)
        holder.gone.add_done_callback(lambda _: self._let_go(sandbox))
        return sandbox

    def _proxy(self, spec: SandboxSpec, inside: Inside, sandbox_id: str, tell: Callable[[str], None]) -> AllowListProxy | None:
        rules = self._backend.network
        if spec.isolation is not Isolation.ISOLATED_NETWORK or rules is None or not inside.walls:
            return None
        return AllowListProxy(rules, sandbox_id=sandbox_id, on_refused=tell)

    async def _open_way_out(self, proxy: AllowListProxy, holder: Holder) -> None:
        def close(_: object) -> None:
            closing = asyncio.create_task(proxy.close(), name="close the way out of a sandbox")
            self._abandoned.add(closing)
            closing.add_done_callback(self._abandoned.discard)

        holder.gone.add_done_callback(close)
        assert holder.keeper is not None
        try:
            await open_way_out(proxy, holder.keeper)
        except OSError as error:
            raise SandboxStartError(self.backend, f"its way to the network does not open: {error}") from error

    async def _build(
        self, folder: SandboxFolder, spec: SandboxSpec, image: ImageLease | None, holder: Holder
    ) -> tuple[Inside, Launcher, Files]:
        """Has the walls built, where the backend has any; returns what stands within them, and by what it is reached."""
        workdir = spec.workdir or (image.workdir if image is not None else "") or DEFAULT_WORKDIR
        try:
            place = folder.place(workdir)
            server = await asyncio.to_thread(_server, folder) if self._entry == "inside" else None
            pid1 = keeper_argv(workdir) if server is None else server.argv(_server_python(image), workdir)
            walls = await asyncio.to_thread(self._backend.command, place, spec, image.root if image else None, pid1)
            if walls is None:
                if server is not None:
                    raise SandboxStartError(self.backend, "it has no walls: sandbox.entry can only be outside", retryable=False)
                return _without_walls(folder, spec), holder, ConfinedFiles(folder.home, (folder.home, folder.temporary))
            await asyncio.to_thread(folder.prepare, place, (*MOUNT_POINTS, *walls.mount_points), image.root if image else None)
            inside = await asyncio.to_thread(_behind, walls, folder, spec, image, workdir)
        except OSError as error:
            raise SandboxStartError(self.backend, f"its folder cannot be made ready: {error.strerror or error}") from error
        try:
            await holder.boot(walls, seccomp_filter(), told=server.token if server else b"", entered=server is None)
        except OSError as error:
            why = f"its walls do not stand: {error.strerror or error}"
            if server is not None and execution.is_without_python(why):
                raise _NothingStartsError(self.backend, f"{execution.NEEDS_PYTHON} ({why})", retryable=False) from error
            raise _NothingStartsError(self.backend, why) from error
        if server is None:
            return inside, holder, EnteredFiles(holder, workdir)
        launcher = await execution.InsideLauncher.connect(folder.sandbox_id, self.backend, holder, server, spec.limits, seccomp_filter())
        return inside, launcher, execution.InsideFiles(launcher)

    async def _finish_or_abandon(self, making: asyncio.Task[LocalSandbox], *, parks: bool) -> LocalSandbox:
        """A caller that is cancelled leaves nothing half made: what comes of it is ended as soon as it is there, and its holder at once, so
        that walls which take their time, or never stand, keep nobody waiting."""
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._unwanted.add(making)
            making.add_done_callback(self._unwanted.discard)
            if (holder := self._holders.get(making)) is not None:
                holder.begin_end(0.0)
            undoing = asyncio.create_task(_undo(making, parks=parks), name=f"undo: {making.get_name()}")
            self._abandoned.add(undoing)
            undoing.add_done_callback(self._abandoned.discard)
            raise

    def _let_go(self, sandbox: LocalSandbox) -> None:
        """Its holder has ended; where that is the middle of its end, it stays ours until that is done."""
        if sandbox.ending is None or sandbox.ending.done():
            self._attached.discard(sandbox)
        else:
            sandbox.ending.add_done_callback(lambda _: self._attached.discard(sandbox))

    # -- blocking ---------------------------------------------------------------------------------------------------------------------

    def _give(self, folder: SandboxFolder, owner: SandboxOwner) -> None:
        """As a start does it: a first look for what the job has here, then the owner, then the second look."""
        self._attempts.end_earlier(owner)
        spec, digest = folder.wishes()
        if spec.image and self._images is not None:
            with self._images.lease(spec.image) as image:
                if image.digest != digest:
                    raise SandboxGone(folder.sandbox_id, f"image {spec.image!r} has another content by now")
        folder.give(owner)
        self._attempts.end_rivals(folder, owner)

    def _make_folder(self, spec: SandboxSpec, owner: SandboxOwner, image_digest: str) -> tuple[SandboxFolder, str]:
        free = shutil.disk_usage(self.scratch_dir).free
        if free < MIN_FREE_BYTES:
            raise SandboxStartError(self.backend, f"{self.scratch_dir} has {free:,} bytes left, at least {MIN_FREE_BYTES:,} are wanted")
        return SandboxFolder.create(
            self.scratch_dir, self.run_dir, spec, owner, backend=self.backend, node=self.node, image_digest=image_digest
        )


def _without_walls(folder: SandboxFolder, spec: SandboxSpec) -> Inside:
    base = {"PATH": os.environ.get("PATH", os.defpath), **library_paths()}
    return Inside(
        workdir=str(folder.home),
        env=sandbox_environment(folder.sandbox_id, str(folder.home), str(folder.temporary), base, spec.env),
        given=SharedFolder(outside=folder.given, inside=str(folder.given)),
        sockets=SharedFolder(outside=folder.sockets, inside=str(folder.sockets)),
        kernel=KernelProgram(python=sys.executable, boot_script=str(BOOT_SCRIPT)),
        walls=False,
    )


def _network(inside: Inside, proxy: AllowListProxy | None) -> str:
    """As in the map of what is enforced."""
    if proxy is not None:
        return "allow-list proxy"
    return "none" if inside.walls else "host"


def _behind(walls: Walls, folder: SandboxFolder, spec: SandboxSpec, image: ImageLease | None, workdir: str) -> Inside:
    given = SharedFolder(outside=folder.given, inside=GIVEN_INSIDE)
    base = {"PATH": INSIDE_PATH, **walls.inside_env, **(image.env if image is not None else {})}
    base |= proxy_variables() if spec.isolation is Isolation.ISOLATED_NETWORK else {}
    return Inside(
        workdir=workdir,
        env=sandbox_environment(folder.sandbox_id, workdir, "/tmp", base, spec.env),
        given=given,
        sockets=SharedFolder(outside=folder.sockets, inside=SOCKETS_INSIDE),
        kernel=KernelProgram(python=walls.python or "python3", boot_script=given.write(BOOT_SCRIPT.name, BOOT_SCRIPT.read_bytes())),
        walls=True,
    )


def _server(folder: SandboxFolder) -> execution.ServerBoot:
    given = SharedFolder(outside=folder.given, inside=GIVEN_INSIDE)
    return execution.ServerBoot(given, SharedFolder(outside=folder.sockets, inside=SOCKETS_INSIDE))


class _NothingStartsError(SandboxStartError):
    """The first process inside did not come up: of a new sandbox that is the image's or the node's fault, later it is what ran inside that
    removed or replaced what it needs."""


def _server_python(image: ImageLease | None) -> list[str]:
    """The beginning of a command line: the Python that the image's own path finds, or this worker's where there is no image."""
    node = NodeRoot()
    needed = node.env if image is None else {name: value for name, value in image.env.items() if name == "PATH"}
    return [
        *(["env", *(f"{name}={value}" for name, value in needed.items())] if needed else []),
        node.python if image is None else "python3",
    ]


async def _undo(making: asyncio.Task[LocalSandbox], *, parks: bool) -> None:
    try:
        sandbox = await making
    except SandboxError:
        return
    try:
        if parks:
            await sandbox.give_back()
        else:
            await sandbox.kill()
    except SandboxGone:  # somebody removed it meanwhile, with its job: there is nothing to end any more
        return
