"""What `bench shell` measures on: an image of its own, and the node service as a process, as `rollstream sandbox serve` runs it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.child_processes import ChildProcesses
from pipeline.folders import Folders, make_folder
from workers.sandbox import Isolation, SandboxOwner, SandboxSpec
from workers.sandbox.images import ImageSettings, ImageStore
from workers.sandbox.local.folder import remove_tree
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.service.link import ServiceNotThere

IMAGE = "bench/shell"
GROUND = Path(sys.prefix) / "sandboxes"
"""Where `./ops/launch test --system-packages` keeps what it made for the tests: a small Debian of some 350 MB, and an Apptainer."""
SPEC = SandboxSpec(isolation=Isolation.ISOLATED, image=IMAGE)
START_S = 60.0


class NoImage(Exception):
    """Nothing to make an image of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"no root file system at {folder}: ./ops/launch test --system-packages makes one, ROLLSTREAM_TEST_IMAGE names another"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchImage:
    """The image, in a store of the benchmark's own."""

    settings: ImageSettings
    megabytes: float

    def store(self) -> ImageStore:
        """For sandboxes of this process."""
        return ImageStore.here(self.settings)

    @property
    def environment(self) -> dict[str, str]:
        """For a service."""
        return {"ROLLSTREAM_IMAGE_SHARED_DIR": str(self.settings.shared_dir), "ROLLSTREAM_IMAGE_NODE_DIR": str(self.settings.node_dir)}


def image_folder() -> Path:
    """Where the benchmark keeps its image."""
    return Folders.from_environment().state / "bench-shell"


def make_image(say: Callable[[str], None]) -> BenchImage:
    """Copies the ground's root file system into a store of our own; what was made by an earlier run is there.

    Raises:
        NoImage
        ImageError: it cannot be read.
    """
    ground = Path(os.environ.get("ROLLSTREAM_TEST_IMAGE") or GROUND / "rootfs")
    if not ground.is_dir():
        raise NoImage(ground)
    place = make_folder(image_folder())
    settings = ImageSettings(shared_dir=place / "names", node_dir=place / "trees")
    store = ImageStore.here(settings)
    if not store.is_here(IMAGE):
        say(f"copying {ground} to {place}, once")
        store.pull(IMAGE, f"folder:{ground}")
    with store.lease(IMAGE) as lease:
        return BenchImage(settings=settings, megabytes=_megabytes(lease.root))


def discard_image() -> None:
    """Removes what `make_image` made."""
    if image_folder().exists():
        remove_tree(image_folder())


def an_owner() -> SandboxOwner:
    """Of another job each time."""
    return SandboxOwner(job_id=f"bench:{secrets.token_hex(6)}", attempt=1, boot_id="bench")


@asynccontextmanager
async def served(backend: str, image: BenchImage | None, settings: Mapping[str, object]) -> AsyncIterator[RemoteSandboxes]:
    """A client of a node service of that backend, which is a process of its own and leaves nothing.

    Args:
        settings: of `[sandbox]`, by name.
    """
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))  # short: sockets live below it
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=make_folder(Folders.from_environment().scratch)))
    variables = {f"ROLLSTREAM_SANDBOX_{name.upper()}": str(value) for name, value in settings.items()}
    try:
        with ChildProcesses(folder / "logs", {**(image.environment if image else {}), **variables}) as children:
            arguments = ["sandbox", "serve", "--backend", backend, "--node", "bench", "--grace-s", "1", "--log-level", "warning"]
            children.start("service", "ops.cli", *arguments, "--run-dir", str(folder / "run"), "--scratch-dir", str(scratch))
            remote = RemoteSandboxes(folder / "run", boot="bench")
            await _until_there(remote, children)
            try:
                yield remote
            finally:
                await remote.close()
    finally:
        remove_tree(scratch)
        shutil.rmtree(folder)


async def _until_there(remote: RemoteSandboxes, children: ChildProcesses) -> None:
    async with asyncio.timeout(START_S):
        while True:
            children.check()
            try:
                await remote.__aenter__()
            except ServiceNotThere:
                await asyncio.sleep(0.05)
            else:
                return


def _megabytes(folder: Path) -> float:
    """What its files occupy, each once."""
    seen = {}
    for path, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(path, name))
            seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values()) / 1e6
