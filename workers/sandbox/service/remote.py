"""One sandbox of the node service, as a worker holds it: the interface on this side, a connection to the service behind it.

When the connection ends, the sandbox has ended: every call that waits raises `SandboxTaken` at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

from pipeline import codec
from workers.sandbox.base import DEFAULT_ARCHIVE_BYTES, DEFAULT_FILE_BYTES, DEFAULT_OUTPUT_BYTES, ShellStdin
from workers.sandbox.errors import SandboxGone, SandboxTaken
from workers.sandbox.local.sandbox import SESSION_NAME
from workers.sandbox.results import ExecResult, FileEntry, KernelResult, ShellResult
from workers.sandbox.service.link import Link
from workers.sandbox.spec import SandboxHandle, Snapshot
from workers.sandbox.use import SandboxUse


class RemoteSandbox:
    """An attachment that the node service holds for us.

    Args:
        link: its connection; closed when the attachment is over.
    """

    def __init__(self, link: Link, handle: SandboxHandle, workdir: str) -> None:
        self._link = link
        self._handle = handle
        self._workdir = workdir
        self._shells: dict[str, RemoteShell] = {}
        self._kernels: dict[str, RemoteKernel] = {}
        self._closed = ""
        self._use = SandboxUse()
        """As the service said last."""
        self._ending: asyncio.Task[None] | None = None
        link.lost_error = self._taken

    @property
    def handle(self) -> SandboxHandle:
        return self._handle

    @property
    def workdir(self) -> str:
        return self._workdir

    def shell(self, name: str = "main") -> RemoteShell:
        _check_name(name)
        if name not in self._shells:
            self._shells[name] = RemoteShell(self, name)
        return self._shells[name]

    def kernel(self, name: str = "main") -> RemoteKernel:
        _check_name(name)
        if name not in self._kernels:
            self._kernels[name] = RemoteKernel(self, name)
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
        told = await self.call(
            "exec",
            command=command if isinstance(command, str) else list(command),
            stdin=stdin,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
        return codec.from_map(ExecResult, told)

    async def upload(self, tar: IO[bytes], folder: str = ".", *, max_bytes: int = DEFAULT_ARCHIVE_BYTES) -> None:
        self.check_open()
        await self._link.upload(tar, folder=folder, max_bytes=max_bytes)

    async def download(self, path: str, tar: IO[bytes], *, max_bytes: int = DEFAULT_ARCHIVE_BYTES) -> None:
        self.check_open()
        await self._link.download(tar, path=path, max_bytes=max_bytes)

    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        content: bytes = await self.call("read_file", path=path, max_bytes=max_bytes)
        return content

    async def write_file(self, path: str, content: bytes, *, executable: bool = False) -> None:
        await self.call("write_file", path=path, content=content, executable=executable)

    async def list(self, path: str = ".") -> Sequence[FileEntry]:
        return tuple(codec.from_map(FileEntry, entry) for entry in await self.call("list", path=path))

    async def use(self) -> SandboxUse:
        if not self._closed:
            with contextlib.suppress(SandboxGone, ValueError):  # it has ended; its service is older, and knows no such question
                self._note_use({"use": await self._link.call("use")})
        return self._use

    async def snapshot(self) -> Snapshot:
        return Snapshot.from_map(await self.call("snapshot"))

    async def park(self) -> SandboxHandle:
        self.check_open()
        await self._end("park", "it was parked")
        return self._handle

    async def stop(self, *, grace_s: float = 0.5) -> None:
        await self._end("stop", "it was stopped", grace_s=grace_s)

    async def kill(self) -> None:
        await self._end("kill", "it was killed")

    async def wait_gone(self) -> str:
        why = await asyncio.shield(self._link.gone)
        return self._closed or why

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._closed:
            await (self.stop() if kind is None else self.kill())

    # -- for this package -----------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises `SandboxGone` when this attachment is over."""
        if self._closed:
            raise SandboxGone(self._handle.sandbox_id, self._closed)
        if self._link.lost.done():
            raise self._taken(self._link.lost.result())
        if self._link.gone.done():
            raise (SandboxTaken if self._link.was_taken else SandboxGone)(self._handle.sandbox_id, self._link.gone.result())

    async def call(self, op: str, **arguments: object) -> Any:
        """One call of this sandbox."""
        self.check_open()
        return await self._link.call(op, **arguments)

    def _taken(self, why: str) -> Exception:
        return SandboxGone(self._handle.sandbox_id, self._closed) if self._closed else SandboxTaken(self._handle.sandbox_id, why)

    def _note_use(self, told: object) -> None:
        """What the service says of it, where it does: of another version it may say nothing, or mean something else by it."""
        if isinstance(told, Mapping) and isinstance(told.get("use"), Mapping):
            with contextlib.suppress(ValueError):
                self._use = SandboxUse.from_map(told["use"])

    async def _end(self, op: str, why: str, **arguments: object) -> None:
        """Ends this attachment once; who asks again, also after a cancel, waits for the same end."""
        if self._ending is None:
            self._closed = why
            self._ending = asyncio.create_task(self._do_end(op, arguments), name=f"end of sandbox {self._handle.sandbox_id}")
        await asyncio.shield(self._ending)

    async def _do_end(self, op: str, arguments: Mapping[str, object]) -> None:
        try:
            self._note_use(await self._link.call(op, **arguments))
        except SandboxGone:
            if op == "park":
                raise
            # the service died, or ended it before us: what is left of it goes with the next sweep
        finally:
            self._link.close()


class RemoteShell:
    """A bash that the node service holds."""

    def __init__(self, sandbox: RemoteSandbox, name: str) -> None:
        self._sandbox = sandbox
        self._name = name

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        no_change_timeout_s: float | None = None,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        stdin: ShellStdin = "null",
    ) -> ShellResult:
        told = await self._sandbox.call(
            "shell.run",
            name=self._name,
            command=command,
            timeout_s=timeout_s,
            no_change_timeout_s=no_change_timeout_s,
            max_output_bytes=max_output_bytes,
            stdin=stdin,
        )
        return codec.from_map(ShellResult, told)

    async def wait(
        self, *, timeout_s: float, no_change_timeout_s: float | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    ) -> ShellResult:
        told = await self._sandbox.call(
            "shell.wait",
            name=self._name,
            timeout_s=timeout_s,
            no_change_timeout_s=no_change_timeout_s,
            max_output_bytes=max_output_bytes,
        )
        return codec.from_map(ShellResult, told)

    async def send(self, text: str) -> bool:
        return bool(await self._sandbox.call("shell.send", name=self._name, text=text))

    async def interrupt(self) -> None:
        await self._sandbox.call("shell.interrupt", name=self._name)

    async def close(self) -> None:
        await self._sandbox.call("shell.close", name=self._name)


class RemoteKernel:
    """A Python that the node service holds."""

    def __init__(self, sandbox: RemoteSandbox, name: str) -> None:
        self._sandbox = sandbox
        self._name = name

    async def run(self, code: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES, max_images: int = 0) -> KernelResult:
        asked = {"code": code, "timeout_s": timeout_s, "max_output_bytes": max_output_bytes}
        if max_images:
            asked["max_images"] = max_images
        told = await self._sandbox.call("kernel.run", name=self._name, **asked)
        return codec.from_map(KernelResult, told)

    async def interrupt(self) -> None:
        await self._sandbox.call("kernel.interrupt", name=self._name)

    async def restart(self) -> None:
        await self._sandbox.call("kernel.restart", name=self._name)

    async def close(self) -> None:
        await self._sandbox.call("kernel.close", name=self._name)


def _check_name(name: str) -> None:
    if not SESSION_NAME.fullmatch(name):
        raise ValueError(f"name of a shell or kernel: expected lower-case letters, digits and dashes, at most 16, got {name!r}")
