"""Tar streams made up in memory, ready to be uploaded. What is done with archives inside a sandbox stands in `file_tree.py`."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def pack_files(files: Mapping[str, bytes]) -> io.BytesIO:
    """A tar stream of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    stream.seek(0)
    return stream
