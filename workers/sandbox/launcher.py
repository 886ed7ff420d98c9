"""What shells, kernels and `exec` need of a backend: to start a process inside its sandbox, know when it ends, and end it.

A launcher owns every process it started, theirs included, and outlives none of them: when `gone` is set, nothing of it runs any more.
File descriptors given to `spawn` are duplicated; the caller closes its own. Paths and programs are the sandbox's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from workers.sandbox.errors import SandboxError

KillScope = Literal["group", "tree", "others"]


class LaunchedProcess(Protocol):
    """A process started in the sandbox; leader of its own session and process group."""

    @property
    def pid(self) -> int:
        """As the launcher counts; inside the sandbox it may have another."""

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""

    async def wait(self) -> int:
        """Returns the exit code when it has ended.

        Raises:
            SandboxGone: the sandbox ended instead.
        """


class Launcher(Protocol):
    """Starts and ends processes in one sandbox."""

    @property
    def gone(self) -> asyncio.Future[str]:
        """Done when the sandbox has ended; the result says why."""

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> LaunchedProcess:
        """Starts a program. `fds` maps the numbers it sees to descriptors of ours; 0, 1 and 2 must be among them.

        Raises:
            OSError: the program or the folder is not there or may not be used.
            SandboxGone: the sandbox has ended.
        """

    async def spawn_pty(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, rows: int, columns: int, fds: Mapping[int, int]
    ) -> tuple[LaunchedProcess, int]:
        """Starts a program on a new terminal of its own, echo off; returns the terminal's master side, which the caller owns."""

    def check_open(self) -> None:
        """What processes answer from the end on, or from when it was asked for, is of the end and not of their commands.

        Raises:
            SandboxGone: the sandbox has ended, or is about to.
        """

    def kill(self, process: LaunchedProcess, scope: KillScope, number: int) -> None:
        """Sends a signal without waiting.

        Args:
            scope: `group` = the process and its group; `tree` = it, all descendants and its whole session, repeated until none is
                left; `others` = its group without itself.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """A folder that worker and sandbox both reach, each by its own path. Only this one sandbox sees it.

    Whatever is in it may have been made by the sandbox: no link in it is followed, in no part of a path, and no file in it is
    overwritten (it may have a second name elsewhere), only replaced.
    """

    outside: Path
    """Where it is for the worker; made by us, in a folder that no sandbox sees."""
    inside: str
    below: tuple[str, ...] = ()
    """The way from `outside` to this folder, when it is a subfolder."""

    def subfolder(self, name: str) -> SharedFolder:
        """A folder in it; made when something is written there."""
        return SharedFolder(outside=self.outside, inside=f"{self.inside}/{name}", below=(*self.below, name))

    def write(self, name: str, content: bytes) -> str:
        """Writes a file only its owner may read, makes the folder when it is missing; returns the path inside. Blocks. Nobody inside
        reads it before this has returned, or he may see half of it.

        Raises:
            SandboxError: the sandbox put something else where the folder was.
        """
        with self.opened() as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)  # not renamed over: file systems bring the content to the disk then, and we wait for it
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
        return f"{self.inside}/{name}"

    def remove(self, name: str) -> None:
        """Removes a file, when it is there. Blocks."""
        with self.opened() as folder, contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder, which is made when it is missing."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        folder = -1
        try:
            try:
                folder = os.open(self.outside, flags)
                for part in self.below:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=folder)
                    above, folder = folder, os.open(part, flags, dir_fd=folder)
                    os.close(above)
            except NotADirectoryError as error:  # Linux says so of a link too
                raise SandboxError(f"the sandbox put something else where its shared folder {self.inside} was") from error
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise SandboxError(f"the sandbox put a link where its shared folder {self.inside} was") from error
                raise
            yield folder
        finally:
            if folder >= 0:
                os.close(folder)
