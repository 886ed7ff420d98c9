"""A repository that comes as a tar in base64: its files, read with bounds."""

from __future__ import annotations

import base64
import io
import tarfile

from workers.handlers.task_data import BadTaskData

MAX_BYTES = 256 * 1024 * 1024
MAX_FILES = 50_000


def files_of_tar(text: str, place: str) -> tuple[dict[str, bytes], frozenset[str]]:
    """Content by path, and the paths that may be run. Folders are made of paths; links are refused, as the row must stand alone.

    Raises:
        BadTaskData
    """
    files: dict[str, bytes] = {}
    executable: set[str] = set()
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text, validate=True)), mode="r:*") as tar:
            for entry in tar:
                if entry.isdir():
                    continue
                path = entry.name.removeprefix("./")
                if not entry.isfile() or any(part in ("", ".", "..", ".git") for part in path.split("/")):
                    raise BadTaskData(f"{place}: {entry.name!r:.80} is no file of a repository", field="repository_tar")
                size += entry.size
                if size > MAX_BYTES or len(files) >= MAX_FILES:
                    raise BadTaskData(f"{place}: more than {MAX_BYTES:,} bytes or {MAX_FILES:,} files", field="repository_tar")
                content = tar.extractfile(entry)
                files[path] = content.read() if content is not None else b""
                if entry.mode & 0o100:
                    executable.add(path)
    except (tarfile.TarError, ValueError, EOFError, OSError) as broken:
        raise BadTaskData(f"{place}: no tar in base64: {broken}", field="repository_tar") from broken
    return files, frozenset(executable)
