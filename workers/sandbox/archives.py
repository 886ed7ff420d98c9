"""Files in and out as tar streams, with bounds on both ways. Blocks; callers use a thread.

Archives come from sandboxes and from data sets: nothing in them is trusted. Extraction uses the `data` filter (no way out of the folder
by names or links, no devices, no foreign owners or modes).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from workers.sandbox.errors import SandboxFileError

MAX_MEMBERS = 200_000
"""A large source tree has some 100,000 files; more is a mistake or an attack on the inodes of the disk."""


def pack_files(files: Mapping[str, bytes]) -> io.BytesIO:
    """A tar stream of files made up in memory, ready to be uploaded."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    stream.seek(0)
    return stream


def pack(path: Path, stream: IO[bytes], *, max_bytes: int) -> None:
    """Writes a file or a folder, named by its last part. Links are kept as links; what is neither file, folder nor link is left out.

    Raises:
        SandboxFileError: more than `max_bytes` of content, or more than `MAX_MEMBERS` names.
    """
    total = members = 0

    def admit(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total, members
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return None
        total += member.size
        members += 1
        _check_bounds(str(path), total, max_bytes, members)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    path.lstat()  # missing is an OSError of its own, not an archive without content
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.add(path, arcname=path.name, filter=admit)


def unpack(stream: IO[bytes], folder: Path, *, max_bytes: int) -> None:
    """Extracts a stream below a folder that exists. Bounds are checked before each member, so what came before a breach stays.

    Raises:
        SandboxFileError: a bound was reached, a member would leave the folder, or the stream is no tar.
    """
    total = members = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                total += member.size
                members += 1
                _check_bounds(str(folder), total, max_bytes, members)
                archive.extract(member, folder, filter="data")
    except tarfile.FilterError as error:
        raise SandboxFileError(str(folder), "outside", str(error)) from error
    except tarfile.TarError as error:
        raise SandboxFileError(str(folder), "bad_archive", str(error)) from error


def _check_bounds(path: str, total: int, max_bytes: int, members: int) -> None:
    if total > max_bytes:
        raise SandboxFileError(path, "too_large", f"more than {max_bytes:,} bytes")
    if members > MAX_MEMBERS:
        raise SandboxFileError(path, "too_large", f"more than {MAX_MEMBERS:,} files")
