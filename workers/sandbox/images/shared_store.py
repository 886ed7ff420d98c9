"""What all nodes share: names, and one SIF file an image. It may lie on a network file system, so nothing in it rests on locks.

    SHARED/names/<quoted name>.json     what a name means
           sif/<digest>.sif             named by the SHA-256 of its bytes
           .new-<x>                     being written, or left by a dead process

1. A file appears whole: it is written under a name of its own, brought to disk, then renamed.
2. What has a digest for a name never changes. Two nodes that bring the same image write the same file twice, and either rename is right.
3. A reader that meets a file being replaced goes on with the one it has opened; one whose file vanished looks again, once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.failpoints import failpoint
from workers.sandbox.images.records import DIGEST, NameRecord, file_name_of, read_record, write_json

_NEW = re.compile(r"\.new-[0-9a-f]{12}(\.sif)?")
ABANDONED_S = 24 * 3600.0
"""A file that is being written and did not grow for so long is nobody's, nor is one without a name: it gets one right after it is there."""


class SharedStore:
    """Names and SIF files.

    Args:
        folder: made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._names = self.folder / "names"
        self._sifs = self.folder / "sif"

    # -- names ------------------------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> NameRecord | None:
        """What a name means here; None when nobody brought it."""
        path = self._names / file_name_of(name)
        try:
            record = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return record if record.name == name else None

    def record(self, record: NameRecord) -> None:
        """Makes a name mean an image."""
        self._names.mkdir(parents=True, exist_ok=True)
        failpoint("image_unnamed")
        write_json(self._names / file_name_of(record.name), record)
        failpoint("image_named")

    def forget(self, name: str) -> bool:
        """Takes a name away; False when there was none."""
        try:
            (self._names / file_name_of(name)).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self) -> tuple[list[NameRecord], list[str]]:
        """All records, by name, and what is wrong with files that hold none."""
        records, problems = [], []
        for path in _files(self._names):
            if path.suffix != ".json" or path.name.startswith("."):
                continue
            try:
                records.append(_read(path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error}")
        return sorted(records, key=lambda record: record.name), problems

    # -- files ------------------------------------------------------------------------------------------------------------------------

    def sif(self, digest: str) -> Path:
        """Where the SIF file of a digest is, or would be."""
        return self._sifs / f"{digest}.sif"

    def has_sif(self, digest: str) -> bool:
        return bool(digest) and self.sif(digest).is_file()

    @contextlib.contextmanager
    def new_file(self) -> Iterator[Path]:
        """A name for a SIF that is being written; what is left of it at the end is removed."""
        self._sifs.mkdir(parents=True, exist_ok=True)
        path = self._sifs / f".new-{secrets.token_hex(6)}.sif"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def adopt(self, path: Path) -> str:
        """Gives a written file its name; returns its digest."""
        digest = digest_of(path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(path, 0o644)
        failpoint("image_unshared")
        path.rename(self.sif(digest))
        failpoint("image_shared")
        return digest

    def sifs(self) -> list[tuple[str, int]]:
        """Digest and size of every SIF file."""
        found = []
        for path in _files(self._sifs):
            with contextlib.suppress(FileNotFoundError):
                if path.suffix == ".sif" and DIGEST.fullmatch(path.stem):
                    found.append((path.stem, path.stat().st_size))
        return found

    def remove_sif(self, digest: str) -> None:
        self.sif(digest).unlink(missing_ok=True)

    def sweep(self, named: frozenset[str] | None, now_s: float | None = None) -> int:
        """Removes what dead processes left half written, and SIF files that no name means any more; how many files that were.

        Args:
            named: digests that names mean; None = not known for sure, so every SIF stays.
        """
        now_s = time.time() if now_s is None else now_s
        swept = 0
        for folder in (self._names, self._sifs):
            for path in _files(folder):
                with contextlib.suppress(FileNotFoundError):
                    is_unnamed = named is not None and path.suffix == ".sif" and DIGEST.fullmatch(path.stem) and path.stem not in named
                    if (_NEW.fullmatch(path.name) or is_unnamed) and now_s - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()
                        swept += 1
        return swept


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: Path) -> NameRecord:
    """A record, read again once when another node replaced the file meanwhile: then a network file system answers ESTALE."""
    try:
        return read_record(path, NameRecord)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return read_record(path, NameRecord)
