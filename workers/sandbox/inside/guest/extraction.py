"""To unpack one member of an archive where Python has no filters of `tarfile` yet, as its `data` filter does.

No way out of the folder by names or links, no devices, no foreign owners or modes. What a guest changes meanwhile can defeat that, and
leads nowhere but into its own sandbox: this keeps mistakes of archives in.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from workers.sandbox.file_tree import TreeError


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One member, below the folder or not at all."""
    top = os.path.realpath(folder)
    member.name = member.name.lstrip("/")
    if not _is_below(top, member.name):
        raise TreeError("outside", f"{member.name!r} would be extracted outside of the folder")
    if member.issym() or member.islnk():
        start = os.path.dirname(member.name) if member.issym() else ""
        if os.path.isabs(member.linkname):
            raise TreeError("outside", f"{member.name!r} is a link to an absolute path")
        if not _is_below(top, os.path.join(start, member.linkname)):
            raise TreeError("outside", f"{member.name!r} links to outside of the folder")
    elif member.isreg():
        member.mode = (member.mode & 0o755) | 0o600
        if not member.mode & 0o100:
            member.mode &= ~0o111
    elif member.isdir():
        member.mode = 0o755
    else:
        raise TreeError("outside", f"{member.name!r} is a special file")
    archive.extract(member, folder)


def _is_below(top: str, path: str) -> bool:
    return os.path.commonpath([os.path.realpath(os.path.join(top, path)), top]) == top
