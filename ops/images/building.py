"""Builds an image here: with the backend of sandboxes that works on this node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers.sandbox import Isolation, Limits, SandboxError, SandboxOwner, SandboxSpec
from workers.sandbox.choice import choose_backend
from workers.sandbox.errors import ImageError
from workers.sandbox.images import ImageLease, ImageStore
from workers.sandbox.images.build import Built, build
from workers.sandbox.images.definition import Definition
from workers.sandbox.images.locks import Say, say_nothing
from workers.sandbox.local import Backend, Entry, LocalSandboxes
from workers.sandbox.local.folder import remove_tree
from workers.sandbox.local.user_name import take_name_back
from workers.sandbox.service.settings import SandboxSettings

GIB = 1024**3
BUILD_LIMITS = Limits(
    cpu_s=24 * 3600,
    memory_bytes=64 * GIB,
    file_bytes=64 * GIB,
    open_files=4096,
    sandbox_memory_bytes=64 * GIB,
    processes=8192,
    sandbox_cpu_s=7 * 24 * 3600,
    disk_bytes=256 * GIB,
    files=2_000_000,
)
"""A build is a person's own program: the bounds are there for what runs away, and the image's own bounds hold for what it makes."""
_IMAGE = "the tree that is being built"
_TAIL_BYTES = 16 * 1024


async def build_image(
    store: ImageStore,
    path: Path,
    *,
    name: str = "",
    settings: SandboxSettings,
    refresh: bool = False,
    share: bool = False,
    say: Say = say_nothing,
) -> Built:
    """Builds a definition.

    Args:
        settings: of the sandboxes that scripts run in: those of the node.

    Raises:
        InvalidRequest: the definition cannot be read.
        ImageError: there is no base, no backend that works, a script failed, or the disk is full.
    """
    definition = Definition.read(path)
    chosen: Backend | None = None
    if any(level.run for level in definition.levels):
        choice = await choose_backend(
            settings.backend, scratch_dir=settings.scratch, run_dir=settings.run, network=settings.network, entry=settings.entry
        )
        chosen = choice.backend
        if chosen is None:
            raise ImageError(name or definition.name, choice.why_none())
    scripts = SandboxScripts(chosen, store, settings.run, entry=settings.entry)
    return await asyncio.to_thread(build, store, definition, scripts, name=name, refresh=refresh, share=share, say=say)


class SandboxScripts:
    """See `workers.sandbox.images.build.Scripts`. Runs in the thread of the build, each script in an event loop of its own.

    Args:
        backend: None only where no script is run.
        run_dir: short; sockets live below it.
        entry: how scripts get behind the walls (ADR 20).
    """

    def __init__(self, backend: Backend | None, store: ImageStore, run_dir: Path, *, entry: Entry = "outside") -> None:
        self._backend = backend
        self._store = store
        self._run_dir = run_dir
        self._entry: Entry = entry

    @contextlib.contextmanager
    def run(self, root: Path, script: str, *, env: Mapping[str, str], network: bool, say: Say) -> Iterator[Path]:
        assert self._backend is not None
        run_dir = self._run_dir / f"b{secrets.token_hex(2)}"
        with self._store.node.temporary() as folder:
            sandboxes = LocalSandboxes(
                self._backend, scratch_dir=folder, run_dir=run_dir, node="build", images=_OneTree(root), entry=self._entry
            )
            with asyncio.Runner() as loop:
                loop.run(sandboxes.__aenter__())
                try:
                    yield loop.run(self._run(sandboxes, root, script, env, network, say))
                finally:
                    loop.run(sandboxes.close())
                    remove_tree(run_dir)  # what was parked in it is read by now

    async def _run(self, sandboxes: LocalSandboxes, root: Path, script: str, env: Mapping[str, str], network: bool, say: Say) -> Path:
        isolation = Isolation.ISOLATED_NETWORK if network else Isolation.ISOLATED
        spec = SandboxSpec(isolation=isolation, image=_IMAGE, env=env, limits=BUILD_LIMITS)
        owner = SandboxOwner(job_id=f"build:{secrets.token_hex(4)}", attempt=1, boot_id="build")
        timeout_s = self._store.settings.timeout_s
        try:
            sandbox = await sandboxes.start(spec, owner)
            result = await sandbox.exec(["/bin/sh", "-ec", script], cwd="/", timeout_s=timeout_s, max_output_bytes=_TAIL_BYTES)
            printed = (result.stdout_text + result.stderr_text).strip()
            for line in printed.splitlines():
                say(line)
            if result.timed_out or result.returncode != 0:
                why = f"did not end within {timeout_s:g} s" if result.timed_out else f"ended with {result.returncode}"
                raise ImageError("build", f"the script {why}: {printed[-2000:] or 'it printed nothing'}")
            handle = await sandbox.park()
        except SandboxError as error:
            if isinstance(error, ImageError):
                raise
            raise ImageError("build", f"the script's sandbox failed: {error}") from error
        upper = Path(handle.folder) / "upper"
        await asyncio.to_thread(take_name_back, root, upper)
        return upper


class _OneTree:
    """The image store of a build's sandboxes: it has the tree that is being built, which the build itself keeps from being removed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def lease(self, name: str) -> ImageLease:
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the holder keeps one, whatever it is of
        return ImageLease(name=name, digest="0" * 64, root=self._root, env={}, workdir="", descriptor=descriptor)
