"""The interface of every sandbox, whatever stands behind it: a bare process, bubblewrap, Apptainer, or a node service over a Unix socket.

Life of one sandbox, and what holds for all backends:

    INIT   provider.start(spec, owner) -> sandbox      attached to the process that asked
           ... upload, exec ...
           sandbox.park() -> handle                    files stay, the lease is free
    RUN    provider.attach(handle, owner) -> sandbox   another process of the same node
           ... shell, kernel, exec ...
           sandbox.stop()                              nothing is left

1. At most one attachment lives at a time; its lease is held by the operating system, so it ends with the process, also by `kill -9`.
2. An attachment that ends without `park` or `stop` ends every process it started.
3. A later attempt of the job fences off earlier ones, for good.
4. What a lost attachment changed is never met by a later one: attaching after a loss raises `SandboxGone`, unless nothing was changed.
5. Only files are promised to survive `park`. Shells and kernels are started anew, when first used.
6. Paths are paths inside the sandbox; relative ones start at `workdir`.
7. A cancelled call ends what it started, then raises `CancelledError`.

Beside this line of life, what a sandbox has on disk can be kept and begun from again, as often as one likes (search in trees, going back to
an earlier turn):

    sandbox.snapshot() -> snapshot               the sandbox goes on as if nothing had been
    provider.restore(snapshot, owner) -> sandbox a new one, of the same spec, with the files of that moment
    provider.drop(snapshot, owner)

8. A snapshot is of one moment: nothing inside runs while it is taken. Files are kept, processes are not: shells and kernels of a restored
   sandbox are new ones. Those of the sandbox it was taken of go on; only their limits of time ran meanwhile.
9. It belongs to its job, as a sandbox does, and ends with it, or with a plain `start` for the job; it does not need the sandbox it was
   taken of. `restore` ends what earlier attempts still have, and nothing of its own attempt's.
10. A command that was ended, or refused something, for a bound of the whole sandbox has the reason in its own result (`notices`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Literal, Protocol, Self

from workers.sandbox.results import ExecResult, FileEntry, KernelResult, ShellResult
from workers.sandbox.spec import Isolation, SandboxHandle, SandboxOwner, SandboxSpec, Snapshot
from workers.sandbox.use import SandboxUse

DEFAULT_OUTPUT_BYTES = 64 * 1024
"""32 KiB of beginning and as much of end: far more than an observation may have in tokens, little beside a job's other memory."""
DEFAULT_FILE_BYTES = 16 * 1024 * 1024
DEFAULT_ARCHIVE_BYTES = 1024**3

ShellStdin = Literal["null", "tty"]


class Shell(Protocol):
    """A bash that lives on between commands: directory, variables, functions and background jobs stay. Started by its first command."""

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        no_change_timeout_s: float | None = None,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        stdin: ShellStdin = "null",
    ) -> ShellResult:
        """Runs any text bash takes: several lines, here-documents, background jobs.

        Args:
            timeout_s: after this the command is ended: Ctrl-C, Ctrl-\\, SIGKILL, a new shell, each when the one before did not help.
            no_change_timeout_s: after this long without output the call returns with status `running`, the command goes on.
            stdin: `null` = end of file for whoever reads; `tty` = the terminal, for a command that will be given input by `send`.
        """

    async def wait(
        self, *, timeout_s: float, no_change_timeout_s: float | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    ) -> ShellResult:
        """Goes on waiting for a command that was left running; `output` is what came since. `ok` and empty when none runs."""

    async def send(self, text: str) -> bool:
        """Types into the terminal, control characters included. False when no command runs, or the terminal takes no more."""

    async def interrupt(self) -> None:
        """Types Ctrl-C."""

    async def close(self) -> None:
        """Ends the shell and everything in its session."""


class Kernel(Protocol):
    """A Python (IPython) process that keeps its variables between cells. Started by its first cell."""

    async def run(self, code: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES, max_images: int = 0) -> KernelResult:
        """Runs one cell. At its limit it is interrupted; a kernel that ignores that is killed, and its variables with it."""

    async def interrupt(self) -> None:
        """Raises KeyboardInterrupt in the cell that runs; nothing when none does."""

    async def restart(self) -> None:
        """Ends the kernel; the next cell runs in a new one."""

    async def close(self) -> None:
        """Ends the kernel and its children."""


class Sandbox(Protocol):
    """One attached sandbox. `async with` stops it at the end, unless it was parked."""

    @property
    def handle(self) -> SandboxHandle:
        """What another process of this node attaches by."""

    @property
    def workdir(self) -> str:
        """Where commands and cells start."""

    def shell(self, name: str = "main") -> Shell:
        """The shell of that name, the same object each time."""

    def kernel(self, name: str = "main") -> Kernel:
        """The kernel of that name, the same object each time."""

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
        """Runs one command without state: a list as it stands, a string by `bash -c`.

        The call ends with the command; what it left running in the background lives on until the sandbox stops.
        A program that is not there is exit code 127 or 126, as from a shell.
        """

    async def upload(self, tar: IO[bytes], folder: str = ".", *, max_bytes: int = DEFAULT_ARCHIVE_BYTES) -> None:
        """Unpacks an (uncompressed) tar stream into a folder, which is made when missing. Links out of the folder are refused."""

    async def download(self, path: str, tar: IO[bytes], *, max_bytes: int = DEFAULT_ARCHIVE_BYTES) -> None:
        """Packs a file or folder into a tar stream, named by its last part. Links stay links; sockets and devices are left out."""

    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        """The content of a regular file; one above `max_bytes` raises."""

    async def write_file(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Writes or replaces a file; folders on the way are made."""

    async def list(self, path: str = ".") -> Sequence[FileEntry]:
        """The names in a folder, sorted."""

    async def use(self) -> SandboxUse:
        """What it has used so far, what bounds it, and what was ended in it. After its end: all of its use, as far as it is known."""

    async def snapshot(self) -> Snapshot:
        """Keeps the files as they are at one moment.

        Raises:
            SnapshotError: they could not be copied, or what the job's snapshots may occupy is used up. The sandbox is as before.
            StaleAttempt: a later attempt of the job was seen here.
        """

    async def park(self) -> SandboxHandle:
        """Ends the processes, keeps the files, and gives the lease up for the next attachment."""

    async def stop(self, *, grace_s: float = 0.5) -> None:
        """Ends everything: asks the processes, after `grace_s` kills them, proves that none is left, then removes the files.

        Raises:
            SandboxLeak: something could not be killed.
        """

    async def kill(self) -> None:
        """`stop` without asking first: for a cancelled job."""

    async def wait_gone(self) -> str:
        """Returns when the sandbox has ended, however it did; says why."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Whether a backend works on this node."""

    backend: str
    works: bool
    isolation: frozenset[Isolation]
    """What it can serve here."""
    why: str
    """When it does not work: the step that failed and what to do about it."""


class SandboxProvider(Protocol):
    """One backend on one node."""

    @property
    def backend(self) -> str: ...

    async def probe(self) -> Probe:
        """Tries what this backend needs."""

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> Sandbox:
        """Makes a sandbox for an attempt of a job; what earlier attempts of that job left on this node is torn down first.

        Raises:
            SandboxStartError: it could not be made; nothing is left of the try.
            StaleAttempt: a later attempt of the job was seen here.
        """

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> Sandbox:
        """Takes over a parked sandbox.

        Raises:
            SandboxGone: it is not there any more, is on another node, or was changed by an attachment that was lost.
            StaleAttempt, SandboxBusy, SandboxRefused: it is there, and not for this caller.
        """

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> Sandbox:
        """Makes a sandbox that has the files of a snapshot; its spec is that of the sandbox it was taken of. Many may at a time.

        Raises:
            SandboxStartError: as from `start`.
            SandboxGone: it was dropped, is on another node, or its image's name means something else by now.
            StaleAttempt, SandboxRefused: it is not for this caller.
            SnapshotError: its files could not be copied.
        """

    async def drop(self, snapshot: Snapshot, owner: SandboxOwner) -> None:
        """Ends a snapshot; one that is gone is nothing. Sandboxes that began from it go on.

        Raises:
            StaleAttempt, SandboxRefused: as from `restore`.
        """

    async def close(self) -> None:
        """Kills what is still attached and frees the provider's own resources."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
