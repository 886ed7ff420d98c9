"""Where an image can come from, as a person writes it.

    docker://repo:tag, oras://, library://, shub://, docker-archive:PATH   through Apptainer
    oci-archive:PATH[:REFERENCE], oci:PATH[:REFERENCE]                     read by us
    sif:PATH, folder:PATH                                                  a file or folder that is there

A **name** is what a task says. One with a scheme is its own source; any other is taken for a repository of a Docker registry when it is
pulled, and for nothing at all when a sandbox asks for it and the store does not know it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.errors import InvalidRequest

SourceKind = Literal["registry", "oci", "sif", "folder"]

_REGISTRIES = ("docker://", "oras://", "library://", "shub://", "docker-archive:", "docker-daemon:")
_PATHS: dict[str, SourceKind] = {"oci-archive:": "oci", "oci:": "oci", "sif:": "sif", "folder:": "folder"}
_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/-]*(:[0-9]+/[A-Za-z0-9._/-]+)?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
MAX_NAME_CHARACTERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A place to read an image from."""

    kind: SourceKind
    text: str
    """As it is recorded; paths are absolute in it."""
    path: Path = Path()
    """Of a source on disk."""
    reference: str = ""
    """Which image of an archive."""


def check_name(name: str) -> str:
    """The name, when it can be one.

    Raises:
        InvalidRequest: empty, with control characters or spaces, too long, or what a program would take for an option.
    """
    if not name or len(name) > MAX_NAME_CHARACTERS or name.startswith("-") or not name.isprintable() or any(c.isspace() for c in name):
        raise InvalidRequest(f"{name[:80]!r} is no name of an image: expected something like docker://repo:tag or oci-archive:PATH")
    return name


def source_of(text: str) -> Source:
    """What a source means.

    Raises:
        InvalidRequest: it is none.
    """
    check_name(text)
    if text.startswith(_REGISTRIES):
        return Source(kind="registry", text=text)
    for scheme, kind in _PATHS.items():
        if text.startswith(scheme):
            return _on_disk(scheme, kind, text.removeprefix(scheme).removeprefix("//" if text.startswith(f"{scheme}///") else ""))
    if _REPOSITORY.fullmatch(text):
        return Source(kind="registry", text=f"docker://{text}")
    raise InvalidRequest(f"{text!r} is no source of an image: expected docker://, oci-archive:, oci:, sif:, folder: or a repository")


def _on_disk(scheme: str, kind: SourceKind, rest: str) -> Source:
    path, reference = Path(rest).expanduser(), ""
    if kind == "oci" and not path.exists() and ":" in rest:
        before, _, reference = rest.rpartition(":")
        path = Path(before).expanduser()
    if not rest:
        raise InvalidRequest(f"{scheme} needs a path")
    path = path.absolute()
    return Source(kind=kind, text=f"{scheme}{path}" + (f":{reference}" if reference else ""), path=path, reference=reference)
