"""Where code of models runs. `base` is the interface of every backend; backends are imported from their own packages.

from workers.sandbox.local import LocalSandboxes        sandboxes of a backend, owned by this process
from workers.sandbox.process import ProcessBackend      bare processes, for development
"""

from workers.sandbox.base import Kernel, Probe, Sandbox, SandboxProvider, Shell
from workers.sandbox.errors import (
    BadImage,
    ExecTimeout,
    ImageError,
    ImageMissing,
    NodeUnavailable,
    NotServedHere,
    SandboxBusy,
    SandboxError,
    SandboxFileError,
    SandboxGone,
    SandboxLeak,
    SandboxRefused,
    SandboxStartError,
    SandboxTaken,
    SessionStartError,
    SnapshotError,
    StaleAttempt,
)
from workers.sandbox.results import ExecResult, FileEntry, KernelResult, ShellResult
from workers.sandbox.spec import Isolation, Limits, SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

__all__ = [
    "BadImage",
    "ExecResult",
    "ExecTimeout",
    "FileEntry",
    "ImageError",
    "ImageMissing",
    "Isolation",
    "Kernel",
    "KernelResult",
    "Limits",
    "NodeUnavailable",
    "NotServedHere",
    "Probe",
    "Sandbox",
    "SandboxBusy",
    "SandboxError",
    "SandboxFileError",
    "SandboxGone",
    "SandboxHandle",
    "SandboxLeak",
    "SandboxOwner",
    "SandboxProvider",
    "SandboxRefused",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxTaken",
    "SessionStartError",
    "Shell",
    "ShellResult",
    "Snapshot",
    "SnapshotError",
    "StaleAttempt",
]
