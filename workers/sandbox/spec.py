"""What is asked for (`SandboxSpec`), for whom (`SandboxOwner`), and what is passed on (`SandboxHandle`, `Snapshot`).

A handle is data: INIT puts its map into the job's body, RUN makes it into an attachment again. It holds a secret, which `repr` hides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Self

GIB = 1024**3


class Isolation(StrEnum):
    """What must stand between the sandbox and its node. A backend that gives less refuses; nothing falls back silently."""

    NONE = "none"
    """Nothing: the code is trusted. For development and for our own programs."""
    ISOLATED = "isolated"
    """Own files, processes and no network: for what a model writes."""
    ISOLATED_NETWORK = "isolated+network"
    """As `ISOLATED`, with a way out to the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on a sandbox: on each single process of it, set as it starts, and on all of them together (`workers/sandbox/limits`)."""

    cpu_s: int = 3600
    """CPU seconds of one process; a kernel lives as long as its job, so this is generous."""
    memory_bytes: int = 4 * GIB
    """Private writable memory of one process (RLIMIT_DATA, not RLIMIT_AS: numeric libraries reserve address space they never touch)."""
    file_bytes: int = GIB
    """Largest file a process may write."""
    open_files: int = 1024
    nice: int = 5
    """Added to the worker's own niceness, so that a busy sandbox cannot keep the worker from renewing its leases."""
    sandbox_memory_bytes: int = 8 * GIB
    """Memory of all processes together: a build or a test run beside a kernel, each at what one process may have."""
    processes: int = 1024
    """Processes and threads at once. Numeric libraries start a thread a core in each process, so this is far above what a task needs
    and far below what a node can bear from one sandbox."""
    sandbox_cpu_s: int = 36_000
    """CPU seconds of all processes together, ended ones included: ten cores for an hour."""
    disk_bytes: int = 16 * GIB
    """What files may occupy beside the image: several copies of a large repository and its packages."""
    files: int = 500_000
    """Files and folders beside the image: a large tree of packages has a fifth of it, and counting more takes seconds."""

    def __post_init__(self) -> None:
        if self.open_files < 256:
            raise ValueError(f"open_files is {self.open_files}, expected at least 256: the shell's control descriptor must fit below it")
        if self.processes < 16:
            raise ValueError(f"processes is {self.processes}, expected at least 16: a shell, a kernel and its threads need as many")
        positive = ("cpu_s", "memory_bytes", "file_bytes", "sandbox_memory_bytes", "sandbox_cpu_s", "disk_bytes", "files")
        for name in positive:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The environment a task needs."""

    isolation: Isolation = Isolation.ISOLATED
    image: str = ""
    """Name of the image; empty = the node's own programs, read-only."""
    workdir: str = ""
    """Where commands start, an absolute path inside, `HOME` too; empty = what the image says, else `/workspace`. Made when it is missing.
    A backend without walls has a folder of its own instead."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that processes get beside the built ones. Nothing of the worker's own environment reaches them."""
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOwner:
    """Who a sandbox works for: the fencing of the queue, repeated at the sandbox."""

    job_id: str
    attempt: int
    """Raised by every `begin` of the job in any stage: a later one fences off all earlier ones."""
    boot_id: str
    """The life of the worker process that asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxHandle:
    """Names one sandbox on one node, and proves the right to it."""

    backend: str
    node: str
    sandbox_id: str
    folder: str
    token: str = field(repr=False)

    def to_map(self) -> dict[str, str]:
        """A map of plain strings, for the wire."""
        return asdict(self)

    @classmethod
    def from_map(cls, values: Mapping[str, object]) -> Self:
        """Reads what `to_map` wrote; fields of a newer writer are ignored.

        Raises:
            ValueError: a field is missing or no string; says which.
        """
        return cls(**_texts(values, "sandbox handle", [known.name for known in fields(cls)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Names what a sandbox had on disk at one moment, and proves the right to it. Data, as a handle; of one node, and of one job."""

    backend: str
    node: str
    snapshot_id: str
    folder: str
    token: str = field(repr=False)

    def to_map(self) -> dict[str, str]:
        """A map of plain strings, for the wire."""
        return asdict(self)

    @classmethod
    def from_map(cls, values: Mapping[str, object]) -> Self:
        """Reads what `to_map` wrote; fields of a newer writer are ignored.

        Raises:
            ValueError: a field is missing or no string; says which.
        """
        return cls(**_texts(values, "snapshot", [known.name for known in fields(cls)]))


def _texts(values: Mapping[str, object], what: str, names: Sequence[str]) -> dict[str, str]:
    read: dict[str, str] = {}
    for name in names:
        value = values.get(name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{what}: field {name!r} should be a non-empty string, got {type(value).__name__}")
        read[name] = value
    return read
