"""The small files of the stores: what a name means, and what an extracted image is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

ImageKind = Literal["oci", "sif", "folder", "build"]
DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_FILE_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What an image's maker said of it, beside its files."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRecord:
    """What a name means: names/<quoted name>.json in the shared store."""

    name: str
    digest: str
    kind: ImageKind
    source: str
    """Where it was read from: a file or folder by its whole path, or the address of a registry; of a build its definition."""
    sif: str = ""
    """Digest of the SIF file that holds it in the shared store; empty = it is on the node that brought it, and in `source`."""
    size_bytes: int = 0
    """On disk when extracted; of a SIF that no node has extracted, the file's."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    by: str = ""
    """User and host that brought it."""
    at_s: float = 0.0
    """When, seconds since the epoch."""

    @classmethod
    def new(cls, name: str, *, digest: str, kind: ImageKind, source: str, contents: Contents, size_bytes: int, sif: str = "") -> Self:
        """A record by this user, now."""
        return cls(
            name=name,
            digest=digest,
            kind=kind,
            source=source,
            sif=sif,
            size_bytes=size_bytes,
            env=dict(contents.env),
            workdir=contents.workdir,
            by=f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}",
            at_s=time.time(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecord:
    """What an extracted image is: meta.json of the node's store, written last."""

    digest: str
    kind: ImageKind
    source: str
    tree: str
    """Digest of the listing of its files."""
    size_bytes: int
    entries: int
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    special_left_out: int = 0
    bits_dropped: int = 0
    took_s: float = 0.0
    at_s: float = 0.0


R = TypeVar("R", NameRecord, TreeRecord)


def file_name_of(name: str) -> str:
    """The file that a name is kept in; the whole name is in the file, so a long one may be shortened."""
    quoted = quote(name, safe="@+:,=")
    if len(quoted) > _LONGEST_FILE_NAME:
        quoted = f"{quoted[:_LONGEST_FILE_NAME]}~{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    return f"{quoted}.json"


def write_json(path: Path, value: NameRecord | TreeRecord) -> None:
    """Replaces a file in one step, on disk before it has its name: a reader, on whatever node, sees the old or the new one whole."""
    fresh = path.with_name(f".new-{secrets.token_hex(6)}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w", encoding="utf-8") as file:
            json.dump(asdict(value), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_record(path: Path, kind: type[R]) -> R:
    """Reads what `write_json` wrote; fields of a newer writer are ignored.

    Raises:
        FileNotFoundError
        ValueError: it is no such record.
    """
    values: Any = json.loads(path.read_bytes())
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no map")
    try:
        record = kind(**{known.name: values[known.name] for known in fields(kind) if known.name in values})
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error
    if not DIGEST.fullmatch(str(record.digest)):
        raise ValueError(f"{path}: no digest in it")
    return record
