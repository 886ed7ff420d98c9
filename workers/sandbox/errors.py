"""How a sandbox fails. A failed command is a result (`results.py`); what stands here is raised.

SandboxError               the boundary is the sandbox; `retryable`: a new sandbox, or the same call later, can help
├── SandboxStartError      it could not be made
│   ├── NodeUnavailable      this node starts nothing now; another does, or this one later
│   └── NotServedHere        this node has no such sandboxes; another may
├── SandboxRefused         it is there, and this caller may not have it
│   ├── StaleAttempt         a later attempt of the job was seen here
│   └── SandboxBusy          another attachment holds it
├── SandboxGone            it ended, or was never on this node
│   └── SandboxTaken         its node took it away; nothing that ran in it is to blame
├── SessionStartError      a shell or a kernel did not come up in a live sandbox
├── SnapshotError          its files could not be copied as they were; the sandbox is as before
├── ExecTimeout            a command outlived its limit and every attempt to end it; carries what it printed
├── SandboxLeak            something of it may still run after it was stopped; the node is not clean
└── ImageError             an image could not be brought, made or read
    ├── ImageMissing         nobody brought it to where this node can read it; names the command that does
    └── BadImage             what it is made of is damaged, or reaches where it must not
SandboxFileError           the sandbox is well, the path is not: the caller's or the model's mistake
"""

from __future__ import annotations

import shlex
from typing import Literal

from pipeline.errors import RollstreamError

FileTrouble = Literal["not_found", "not_a_file", "not_a_folder", "outside", "too_large", "denied", "bad_archive", "full"]
SessionKind = Literal["shell", "kernel"]


class SandboxError(RollstreamError):
    """The sandbox itself failed, not a command in it."""

    retryable: bool = True
    failure_kind: str = ""
    """The kind in a job's record, where that is a word people and programs look for; empty = the name of the class."""


class SandboxStartError(SandboxError):
    """No sandbox came of it, and nothing of the try is left.

    Args:
        retryable: whether the same spec can succeed later, or on another node.
    """

    def __init__(self, backend: str, why: str, *, retryable: bool = True) -> None:
        super().__init__(f"sandbox ({backend}) not started: {why}")
        self.backend = backend
        self.why = why
        self.retryable = retryable


class NodeUnavailable(SandboxStartError):
    """The node starts no sandboxes now: its service stops, is not there, or says that it is degraded. Not the job's fault: it goes back
    uncounted, and the worker rests for a while."""

    def __init__(self, backend: str, why: str) -> None:
        super().__init__(backend, why)


class NotServedHere(SandboxStartError):
    """The node's backend has no sandbox as it was asked for: no walls, no images, no way out. It never will; another node may."""

    def __init__(self, backend: str, why: str) -> None:
        super().__init__(backend, why, retryable=False)


class SandboxRefused(SandboxError):
    """A sandbox that this caller may not have; asking again with the same handle changes nothing."""

    retryable = False

    def __init__(self, sandbox_id: str, why: str) -> None:
        super().__init__(f"sandbox {sandbox_id} refused: {why}")
        self.sandbox_id = sandbox_id
        self.why = why


class StaleAttempt(SandboxRefused):
    """A later attempt of the same job has been here: the caller has lost its lease and must drop its work."""

    def __init__(self, sandbox_id: str, attempt: int, seen: int) -> None:
        super().__init__(sandbox_id, f"attempt {attempt} of its job came after attempt {seen}")
        self.attempt = attempt
        self.seen = seen


class SandboxBusy(SandboxRefused):
    """Another attachment holds it. The lease is free when that process parks it, stops it or dies."""

    retryable = True

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id, "another attachment holds its lease")


class SandboxGone(SandboxError):
    """The sandbox ended (stopped, torn down, its processes killed from outside), or is not on this node."""

    def __init__(self, sandbox_id: str, why: str) -> None:
        super().__init__(f"sandbox {sandbox_id} is gone: {why}")
        self.sandbox_id = sandbox_id
        self.why = why


class SandboxTaken(SandboxGone):
    """The sandbox was ended over the head of whoever held it: its node service died or stopped, an agent found its job over, a person said
    so. Never the doing of what ran in it."""


class SnapshotError(SandboxError):
    """No snapshot came of it, or no files out of one; nothing of the try is left, and what was copied from is as before.

    Args:
        retryable: whether it can succeed later.
    """

    def __init__(self, sandbox_id: str, why: str, *, retryable: bool = False) -> None:
        super().__init__(f"snapshot of {sandbox_id}: {why}")
        self.sandbox_id = sandbox_id
        self.why = why
        self.retryable = retryable


class SessionStartError(SandboxError):
    """A shell or kernel that did not come up; `detail` is the last it printed."""

    def __init__(self, kind: SessionKind, why: str, detail: str = "") -> None:
        super().__init__(f"{kind} did not start: {why}" + (f"\n{detail}" if detail else ""))
        self.kind: SessionKind = kind
        self.why = why
        self.detail = detail


class ExecTimeout(SandboxError):
    """A command could not be ended: the sandbox no longer does what it is told."""

    def __init__(self, what: str, timeout_s: float, stdout: bytes, stderr: bytes) -> None:
        super().__init__(f"{what}: limit of {timeout_s:g} s passed and the processes did not end when killed")
        self.what = what
        self.timeout_s = timeout_s
        self.stdout = stdout
        self.stderr = stderr


class SandboxLeak(SandboxError):
    """Something of a stopped sandbox is still there: processes, or mounts below its folder that this node sees."""

    retryable = False

    def __init__(self, sandbox_id: str, pids: tuple[int, ...], mounts: tuple[str, ...] = ()) -> None:
        left = [f"still running after it was killed: {', '.join(map(str, pids))}"] if pids else []
        left += [f"still mounted: {', '.join(mounts)}"] if mounts else []
        super().__init__(f"sandbox {sandbox_id}: {'; '.join(left)}")
        self.sandbox_id = sandbox_id
        self.pids = pids
        self.mounts = mounts


class ImageError(SandboxError):
    """An image could not be had; the message says why and what to do. `retryable` by default: a full disk or a lost network may pass."""

    def __init__(self, image: str, why: str) -> None:
        super().__init__(f"image {image}: {why}")
        self.image = image
        self.why = why


class ImageMissing(ImageError):
    """No image of that name is known here, or its files are not where this node can read them. No stage fetches one."""

    retryable = False
    failure_kind = "image_missing"

    def __init__(self, image: str, why: str = "not in the image store") -> None:
        self.command = f"rollstream image pull {shlex.quote(image)}"
        super().__init__(image, f"{why}; bring it with: {self.command}")


class BadImage(ImageError):
    """Content that is damaged, or an archive that tries what no image may: the same bytes will be refused again."""

    retryable = False


class SandboxFileError(RollstreamError):
    """A path that cannot be read, written or listed as asked."""

    def __init__(self, path: str, trouble: FileTrouble, detail: str = "") -> None:
        super().__init__(f"{path}: {trouble.replace('_', ' ')}" + (f" ({detail})" if detail else ""))
        self.path = path
        self.trouble: FileTrouble = trouble
        self.detail = detail
