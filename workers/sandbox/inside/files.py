"""Files of a sandbox that nobody enters: a process in it works on them, and none of its answers is trusted. Blocks; for threads.

1. An operation has a socket of its own, one end of which is sent in. What comes on it is frames of at most 64 KiB, in all not more than
   was asked for; what is no such frame ends the sandbox.
2. A socket on which nothing moves for `STILL_S` ends its operation, and the process inside is killed: the guest can stop it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, cast, get_args

from workers.sandbox.errors import FileTrouble, SandboxError, SandboxFileError
from workers.sandbox.file_tree import MAX_MEMBERS
from workers.sandbox.inside.guest import frames
from workers.sandbox.inside.guest.file_operations import DATA, DETAIL_CHARACTERS, DONE, ENTRIES
from workers.sandbox.inside.launcher import InsideLauncher
from workers.sandbox.local.files import check_path, entries
from workers.sandbox.pieces import PIECE_BYTES, pieces_of
from workers.sandbox.results import EntryKind, FileEntry

STILL_S = 60.0
PATH_BYTES = 16 * 1024
"""Four times what Linux takes: the answer comes from there, the frame must fit."""
LIST_BYTES = 64 * 1024 * 1024
"""Of a listing: twice as many of the longest names as are listed (`MAX_NAMES`)."""
MEMBER_BYTES = 4 * 1024
"""Of an archive beside the content of a member: headers, a long path, and what fills the last block."""


class InsideFiles:
    """The files of one sandbox; relative paths start at its working folder.

    Args:
        still_s: longest without a byte in an operation.
        list_bytes: longest listing; a folder with more names is refused.
    """

    def __init__(self, launcher: InsideLauncher, *, still_s: float = STILL_S, list_bytes: int = LIST_BYTES) -> None:
        self._launcher = launcher
        self._still_s = still_s
        self._list_bytes = list_bytes
        self._loop = asyncio.get_running_loop()

    def read(self, path: str, max_bytes: int) -> bytes:
        content = bytearray()
        self._operate("read", path, max_bytes=max_bytes, take=content.extend, bound=max_bytes)
        return bytes(content)

    def write(self, path: str, content: bytes, *, executable: bool) -> None:
        self._operate("write", path, executable=executable, give=pieces_of(content))

    def list(self, path: str) -> tuple[FileEntry, ...]:
        return entries(self._operate("list", path, bound=self._list_bytes))

    def upload(self, tar: IO[bytes], folder: str, max_bytes: int) -> None:
        self._operate("upload", folder, max_bytes=max_bytes, give=lambda: tar.read(PIECE_BYTES))

    def download(self, path: str, tar: IO[bytes], max_bytes: int) -> None:
        self._operate("download", path, max_bytes=max_bytes, take=tar.write, bound=max_bytes + MAX_MEMBERS * MEMBER_BYTES)

    def close(self) -> None:
        """Nothing is held: an operation ends with its sandbox."""

    def _operate(
        self,
        operation: str,
        path: str,
        *,
        max_bytes: int = 0,
        executable: bool = False,
        give: Callable[[], bytes] | None = None,
        take: Callable[[bytes], Any] | None = None,
        bound: int = 0,
    ) -> Sequence[tuple[str, str, int]]:
        """One operation; returns the names of a listing.

        Args:
            bound: of bytes that may come.
        """
        check_path(path)
        encoded = os.fsencode(path)
        if len(encoded) > PATH_BYTES:
            raise SandboxFileError(path[:100], "not_found", "the path is too long")
        request = {"op": operation, "path": encoded.hex(), "max_bytes": max_bytes, "executable": executable}
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                starting = self._launcher.start_on_files(request, theirs.fileno())
                number = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
            ours.settimeout(self._still_s)
            connection = self._launcher.connection
            try:
                if give is not None:
                    while piece := give():
                        ours.sendall(piece)
                ours.shutdown(socket.SHUT_WR)
                listed, answer = _take(ours, take, bound, lists=operation == "list")
            except BaseException as error:
                self._loop.call_soon_threadsafe(connection.kill, number, "group", signal.SIGKILL)
                if isinstance(error, frames.FrameError):
                    self._loop.call_soon_threadsafe(connection.break_off, f"{error} during {operation}")
                    raise SandboxError(f"{operation} of {path!r}: {error}") from error
                if isinstance(error, _TooMuchError):
                    raise SandboxFileError(path, "too_large", f"more than {bound:,} bytes") from error
                if isinstance(error, TimeoutError):
                    raise SandboxError(f"{operation} of {path!r}: nothing moved for {self._still_s:g} s, so it was ended") from error
                if isinstance(error, (BrokenPipeError, ConnectionResetError, EOFError)):
                    asyncio.run_coroutine_threadsafe(
                        self._launcher.check_server(), self._loop
                    ).result()  # it may have ended with its sandbox
                    raise SandboxError(f"the process that works on the sandbox's files ended during {operation} of {path!r}") from error
                raise
        if "failed" in answer:
            raise SandboxError(f"{operation} of {path!r} failed: {answer['failed']}")
        if "trouble" in answer:
            raise SandboxFileError(path, cast(FileTrouble, answer["trouble"]), answer["detail"])
        return listed


class _TooMuchError(Exception):
    """An honest answer that is too long."""


def _take(
    connection: socket.socket, take: Callable[[bytes], Any] | None, bound: int, *, lists: bool
) -> tuple[list[tuple[str, str, int]], Mapping[str, str]]:
    """Hands the pieces on until the answer comes; returns what was listed, and the answer.

    Raises:
        FrameError: what came is none of ours, or more than was asked for.
    """
    decoder = frames.Decoder()
    listed: list[tuple[str, str, int]] = []
    left = bound
    while True:
        data = connection.recv(PIECE_BYTES)
        if not data:
            raise EOFError
        for kind, _, content in decoder.feed(data):
            if kind == DONE:
                return listed, _answer(content)
            if kind not in (DATA, ENTRIES) or (kind == ENTRIES) != lists or (kind == DATA and take is None):
                raise frames.FrameError(f"a frame of kind {kind}")
            left -= len(content)
            if left < 0:
                if lists:
                    raise _TooMuchError
                raise frames.FrameError(f"more than the {bound:,} bytes that were asked for")
            if take is not None:
                take(content)
            else:
                listed += _names(content)


def _answer(content: bytes) -> Mapping[str, str]:
    found = _parsed(content)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise frames.FrameError("an answer that is no map of texts")
    if "trouble" in found and (found["trouble"] not in get_args(FileTrouble) or "detail" not in found):
        raise frames.FrameError("an answer that is none")
    return {name: value[:DETAIL_CHARACTERS] for name, value in found.items()}


def _names(content: bytes) -> list[tuple[str, str, int]]:
    found = _parsed(content)
    if not isinstance(found, list):
        raise frames.FrameError("names that are no list")
    names = []
    for entry in found:
        try:
            name, kind, size = entry
            decoded = os.fsdecode(bytes.fromhex(name))
        except (TypeError, ValueError):
            raise frames.FrameError("a name that is none") from None
        if kind not in get_args(EntryKind) or isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise frames.FrameError("a name without kind and size")
        names.append((decoded, kind, size))
    return names


def _parsed(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise frames.FrameError("an answer that is no JSON") from None
