"""What a local backend is asked for: which specs it serves, and the command that builds the walls around one sandbox.

Everything else of a local sandbox (its folder, its lease, the holder, entering, files, the end) is the same for all backends and stands in
this package. A backend without walls (`process`) answers `None` for the command: its programs are children of the holder itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workers.sandbox.network import NetworkRules
from workers.sandbox.spec import Isolation, SandboxSpec

GIVEN_INSIDE = "/run/rollstream/given"
SOCKETS_INSIDE = "/run/rollstream/sockets"
MOUNT_POINTS = ("/proc", "/dev", "/tmp", "/var/tmp", GIVEN_INSIDE, SOCKETS_INSIDE)
"""What every backend mounts over the root; real folders in the upper layer by the time its command runs."""


def walled_classes(network: NetworkRules | None) -> frozenset[Isolation]:
    """What a backend with walls serves; a way out of them only where somebody has said where it may lead."""
    return frozenset({Isolation.NONE, Isolation.ISOLATED} if network is None else Isolation)


def refuse_network(spec: SandboxSpec, network: NetworkRules | None) -> str:
    """Why a backend with walls cannot serve the class a spec asks for; empty when it can."""
    if spec.isolation in walled_classes(network):
        return ""
    setting = "the setting sandbox.network_allow (ROLLSTREAM_SANDBOX_NETWORK_ALLOW=pypi.org:443,...)"
    return f"the task asks for isolation {spec.isolation.value!r}, and this node lets no sandbox out: {setting} lists what may be reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folders of one sandbox as the node sees them, and where they appear inside."""

    folder: Path
    """SCRATCH/ID; below it `upper` and `work` (the overlay's), `tmp` (its /tmp) and `var-tmp` (its /var/tmp), all made by us."""
    given: Path
    """What we give: mounted read-only at `GIVEN_INSIDE`."""
    sockets: Path
    """Where its kernels make their sockets: mounted writable at `SOCKETS_INSIDE`."""
    workdir: str
    """Inside; it is `HOME` too. Made by us when it is missing."""

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def var_temporary(self) -> Path:
        return self.folder / "var-tmp"

    def make_merged(self) -> Path:
        """Where the layers are mounted for a command that does not do it itself, made by the backend."""
        folder = self.folder / "merged"
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder

    @property
    def private(self) -> Mapping[str, Path]:
        """What hides everything of the root below these names: where something is mounted there, its mount point is in here."""
        return {"/tmp": self.temporary, "/var/tmp": self.var_temporary}

    def make_shared_memory(self) -> Path:
        """Its /dev/shm, a folder too, made by the backend: in memory it could grow to half of the node's, in no process's count."""
        folder = self.folder / "shm"
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Layers that the holder mounts, in namespaces of the command's own, before it runs a command that cannot (`holder/overlaying.py`)."""

    lower: Path
    """A folder; never written."""
    upper: Path
    work: Path
    at: Path
    """Where the command finds them as one; an empty folder."""

    @property
    def words(self) -> list[str]:
        return [str(self.lower), str(self.upper), str(self.work), str(self.at)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """The command that builds the walls and becomes, or starts, PID 1 inside them. Run by the holder."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment of the command; nothing of the worker's own is in it."""
    given: Mapping[int, bytes] = field(default_factory=dict)
    """What the command reads from descriptors, by their numbers; not `keeper.READY_FD`, `keeper.HOLD_FD`, 0, 1 and 2."""
    inside_env: Mapping[str, str] = field(default_factory=dict)
    """What programs inside need beside the usual, such as where the node's libraries are; below what image and task say."""
    mount_points: tuple[str, ...] = ()
    """Where it mounts over the root beside `MOUNT_POINTS`."""
    overlay: Overlay | None = None
    """The layers of the root, where the command does not mount them itself."""
    python: str = ""
    """A Python inside that can run the IPython kernel; empty = the image's own `python3`."""


class Backend(Protocol):
    """How one kind of walls is built. Holds no state of any one sandbox."""

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> frozenset[Isolation]:
        """The classes it serves on this node."""

    @property
    def network(self) -> NetworkRules | None:
        """Where a sandbox of the class `isolated+network` may go; None = that class is not served."""

    def refuse(self, spec: SandboxSpec) -> str:
        """Why this spec cannot be served here; empty when it can."""

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        """The command for one sandbox; `None` = this backend has no walls. Blocks; called in a thread.

        Args:
            image: the root file system, read-only; `None` = the node's own programs.
            pid1: what PID 1 inside is to be, as a command line by the sandbox's own paths. It inherits two descriptors, whose
                numbers are in it: the command must pass them on.

        Raises:
            SandboxStartError: something the command needs is not there.
        """
