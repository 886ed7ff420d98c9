"""The files of one data set: `part-<entry that it comes after>.parquet`, and how two exporters never write the same record.

1. A part is written under a name that nobody reads (`.part-...`) and gets its own by `link`, which one of two can: the other throws its
   part away and goes on behind the first. No lock; works on a network file system.
2. What the newest part ends with is where the next one begins. That stands in the part itself, so no other file can disagree with it.
3. A part that has its name is never changed.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import orjson

from pipeline.errors import RollstreamError

UNFINISHED = ".part-"
START = "0-0"
LAST_ENTRY = b"rollstream.last_entry"
_ENTRY = re.compile(r"(\d{1,15})-(\d{1,10})")
_PART = re.compile(r"part-\d{15}-\d{10}\.(parquet|jsonl)")
TAIL_BYTES = 1 << 20


class ExportError(RollstreamError):
    """An export cannot begin, or cannot go on; says what to do."""


class Parts:
    """The parts of one data set in its folder.

    Args:
        folder: made when it is missing.
        extension: `parquet` or `jsonl`.
    """

    def __init__(self, folder: Path, extension: str) -> None:
        self.folder = folder
        self._extension = extension
        self._last_entry: Callable[[Path], str] = _last_of_parquet if extension == "parquet" else _last_of_jsonl

    def paths(self) -> list[Path]:
        """All parts, in the order of their records."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _PART.fullmatch(path.name) and path.suffix == f".{self._extension}")

    def end(self) -> str:
        """The entry id of the last record that was exported; `0-0` when none was.

        Raises:
            ExportError: the newest part cannot be read.
        """
        paths = self.paths()
        if not paths:
            return START
        try:
            entry = self._last_entry(paths[-1])
        except (OSError, ValueError, KeyError) as error:
            raise ExportError(
                f"{paths[-1]} cannot be read ({error}): remove it, and its records are exported again, if they are there"
            ) from error
        if not _ENTRY.fullmatch(entry):
            raise ExportError(f"{paths[-1]} does not say where it ends: remove it, and its records are exported again, if they are there")
        return entry

    def draft(self) -> Path:
        """A name to write a part under."""
        return self.folder / f"{UNFINISHED}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def publish(self, draft: Path, after: str) -> bool:
        """Gives a finished part its name; False = another exporter has written what comes after that entry, and the draft is gone.

        Raises:
            ExportError: the file system has no hard links.
        """
        path = self.folder / f"{name_after(after)}.{self._extension}"
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise ExportError(f"{path}: {error.strerror}: an export needs a file system with hard links; choose another folder") from error
        finally:
            draft.unlink(missing_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True


def name_after(entry: str) -> str:
    """Name of the part that begins behind an entry; names sort as entries do."""
    match = _ENTRY.fullmatch(entry)
    assert match is not None, entry
    return f"part-{int(match[1]):015d}-{int(match[2]):010d}"


def _last_of_parquet(path: Path) -> str:
    from pyarrow import ArrowException, parquet

    try:
        metadata: dict[bytes, bytes] = parquet.read_metadata(path).metadata or {}
    except ArrowException as error:
        raise ValueError(str(error)) from error
    return metadata[LAST_ENTRY].decode("ascii", "replace")


def _last_of_jsonl(path: Path) -> str:
    """Reads backwards to the beginning of the last line, which may be long."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and b"\n" not in tail.rstrip(b"\n"):
            begin = max(0, end - TAIL_BYTES)
            file.seek(begin)
            tail = file.read(end - begin) + tail
            end = begin
    return str(orjson.loads(tail.rstrip(b"\n").rpartition(b"\n")[2])["entry"])


__all__ = ["LAST_ENTRY", "START", "UNFINISHED", "ExportError", "Parts", "name_after"]
