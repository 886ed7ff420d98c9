"""Images as archives of the Open Container Initiative: a folder (`oci:PATH`) or one tar file (`oci-archive:PATH`), read by ourselves.

    index.json       what images there are; an entry may be an index again, one image a kind of machine
    blobs/sha256/X   manifest: its configuration and its layers, each by digest and size

The digest of a manifest stands for all below it, so it is the digest of the image. What is read is held against its digest: small blobs
before they are used, layers when they are through, after which a tree that should not be is thrown away.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from workers.sandbox.images.compression import HashedPart, unpacked
from workers.sandbox.images.entries import BadArchive, Entries, Entry
from workers.sandbox.images.tar_stream import TarStream
from workers.sandbox.images.tree_writer import Bounds

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
"""Of an index, a manifest or a configuration."""
MAX_INDEX_DEPTH = 4
MAX_LAYERS = 1000
_INDEX_TYPES = frozenset({"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"})
_REF_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}
_HEADER_BYTES_AN_ENTRY = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One blob by what its referrer says of it."""

    digest: str
    """SHA-256, 64 hex digits."""
    size: int
    media_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OciImage:
    """One image of an archive."""

    digest: str
    """Of its manifest."""
    layers: tuple[Blob, ...]
    env: Mapping[str, str]
    workdir: str


class Blobs(Protocol):
    """Where blobs are read."""

    def open(self, name: str) -> tuple[IO[bytes], int]:
        """A file of the layout, positioned at its beginning, and its size. The caller closes it."""


class LayoutFolder:
    """A layout in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> tuple[IO[bytes], int]:
        try:
            file = open(self._path / name, "rb")  # noqa: SIM115 - the caller closes it
        except (FileNotFoundError, NotADirectoryError):
            raise BadArchive(f"{name} is not in it") from None
        return file, file.seek(0, 2) + file.seek(0)


class LayoutArchive:
    """A layout in one tar file, uncompressed. Reads the places of its members once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        with path.open("rb") as file:
            tar = TarStream(file, seek=file.seek)
            for entry in tar.entries():
                if entry.kind == "file":
                    self._places[entry.name.removeprefix("./")] = (tar.position, entry.size)

    def open(self, name: str) -> tuple[IO[bytes], int]:
        if name not in self._places:
            raise BadArchive(f"{name} is not in it")
        offset, size = self._places[name]
        file = self._path.open("rb")
        file.seek(offset)
        return file, size


class OciArchive:
    """A layout that is open; `image` finds one in it, `layer` reads it."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    @classmethod
    def at(cls, path: Path) -> Self:
        """The layout in a folder or a tar file.

        Raises:
            BadArchive: there is no layout.
            OSError: it cannot be read.
        """
        archive = cls(LayoutFolder(path) if path.is_dir() else LayoutArchive(path))
        archive._document("oci-layout", None)
        return archive

    def image(self, reference: str = "") -> OciImage:
        """The image of a reference, else the only one for this machine.

        Raises:
            BadArchive: none, or several; says which there are.
        """
        manifest = self._choose(self._document("index.json", None), reference, depth=0)
        raw = self._read(manifest)
        content = _map(json_of(raw), "its manifest")
        layers = tuple(_blob(layer, "a layer") for layer in _list(content.get("layers"), "its layers"))
        if len(layers) > MAX_LAYERS:
            raise BadArchive(f"{len(layers)} layers")
        config = _map(json_of(self._read(_blob(content.get("config"), "its configuration"))), "its configuration")
        inner = _map(config.get("config") or {}, "its configuration")
        workdir = inner.get("WorkingDir")
        return OciImage(
            digest=manifest.digest,
            layers=layers,
            env=_environment(inner.get("Env") or ()),
            workdir=workdir if isinstance(workdir, str) else "",
        )

    @contextlib.contextmanager
    def layer(self, blob: Blob, bounds: Bounds) -> Iterator[Entries]:
        """The entries of one layer. At the end of the block its bytes are held against its digest.

        Raises:
            BadArchive: damaged, too large, or no layer.
        """
        file, size = self._blobs.open(f"blobs/sha256/{blob.digest}")
        with file:
            if size != blob.size:
                raise BadArchive(f"layer {blob.digest[:12]} has {size:,} bytes, its manifest says {blob.size:,}")
            part = HashedPart(file, size)
            with unpacked(part, bounds.max_bytes + bounds.max_entries * _HEADER_BYTES_AN_ENTRY) as stream:
                yield as_layer(TarStream(stream).entries())
            if part.finish() != blob.digest:
                raise BadArchive(f"layer {blob.digest[:12]} is damaged: its bytes are not those of its digest")

    # -- finding ----------------------------------------------------------------------------------------------------------------------

    def _choose(self, index: object, reference: str, *, depth: int) -> Blob:
        entries = [_map(entry, "an entry of its index") for entry in _list(_map(index, "its index").get("manifests"), "its index")]
        if reference:
            entries = [entry for entry in entries if reference in _names(entry)] or self._refuse(reference, entries)
        fitting = [entry for entry in entries if _fits(entry)]
        if len(fitting) != 1:
            found = "; ".join(_described(entry) for entry in (fitting or entries)) or "nothing"
            raise BadArchive(
                f"one image for {_this_machine()} was expected, it has: {found}" + ("" if reference else "; name one by PATH:REFERENCE")
            )
        chosen = _blob(fitting[0], "an entry of its index")
        if chosen.media_type in _INDEX_TYPES:
            if depth >= MAX_INDEX_DEPTH:
                raise BadArchive("indexes in indexes in indexes")
            return self._choose(json_of(self._read(chosen)), "", depth=depth + 1)
        return chosen

    def _refuse(self, reference: str, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        names = sorted({name for entry in entries for name in _names(entry)})
        raise BadArchive(f"no image {reference!r} in it, but {', '.join(names) or 'images without names'}")

    # -- reading ----------------------------------------------------------------------------------------------------------------------

    def _document(self, name: str, expected: str | None) -> object:
        return json_of(self._bytes(name, expected))

    def _read(self, blob: Blob) -> bytes:
        raw = self._bytes(f"blobs/sha256/{blob.digest}", blob.digest)
        if len(raw) != blob.size:
            raise BadArchive(f"blob {blob.digest[:12]} has {len(raw):,} bytes, its referrer says {blob.size:,}")
        return raw

    def _bytes(self, name: str, expected: str | None) -> bytes:
        file, size = self._blobs.open(name)
        with file:
            if size > MAX_DOCUMENT_BYTES:
                raise BadArchive(f"{name} has {size:,} bytes")
            raw = file.read(size)
        if expected is not None and hashlib.sha256(raw).hexdigest() != expected:
            raise BadArchive(f"blob {expected[:12]} is damaged: its bytes are not those of its digest")
        return raw


def as_layer(entries: Entries) -> Entries:
    """Reads the names by which layers remove: `.wh.NAME`, and `.wh..wh..opq` for all that was in a folder."""
    for entry in entries:
        folder, _, name = entry.name.rstrip("/").rpartition("/")
        if not name.startswith(".wh."):
            yield entry
        elif name == ".wh..wh..opq":
            yield Entry(name=folder, kind="opaque")
        elif name.startswith(".wh..wh."):
            continue  # what an older union file system wrote for itself
        else:
            removed = name.removeprefix(".wh.")
            if removed in ("", ".", ".."):
                raise BadArchive(f"{entry.name!a}: removes what is no name")
            yield Entry(name=f"{folder}/{removed}", kind="whiteout")


# -- what documents say ----------------------------------------------------------------------------------------------------------------


def json_of(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadArchive(f"a document that is no JSON: {error}") from error


def _map(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadArchive(f"{what} is no map")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadArchive(f"{what} is no list")
    return value


def _blob(value: object, what: str) -> Blob:
    content = _map(value, what)
    digest, size = content.get("digest"), content.get("size")
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise BadArchive(f"{what} has the digest {str(digest)[:80]!r}; sha256 is read")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadArchive(f"{what} has no size")
    return Blob(digest=digest.removeprefix("sha256:"), size=size, media_type=str(content.get("mediaType", "")))


def _names(entry: Mapping[str, Any]) -> list[str]:
    annotations = entry.get("annotations")
    return [annotations[key] for key in _REF_NAMES if isinstance(annotations.get(key), str)] if isinstance(annotations, dict) else []


def _fits(entry: Mapping[str, Any]) -> bool:
    """Whether it is for this kind of machine; one that does not say is."""
    machine = entry.get("platform")
    if not isinstance(machine, dict):
        return True
    return (machine.get("os", "linux"), machine.get("architecture", _this_machine())) == ("linux", _this_machine())


def _described(entry: Mapping[str, Any]) -> str:
    machine = entry.get("platform") if isinstance(entry.get("platform"), dict) else {}
    name = ", ".join(_names(entry)) or str(entry.get("digest"))[:19]
    return f"{name} ({machine.get('os', '?')}/{machine.get('architecture', '?')})" if machine else name


def _this_machine() -> str:
    return _MACHINES.get(platform.machine(), platform.machine())


def _environment(lines: object) -> dict[str, str]:
    found = {}
    for line in lines if isinstance(lines, list) else ():
        name, equals, value = line.partition("=") if isinstance(line, str) else ("", "", "")
        if equals and name and "\0" not in line:
            found[name] = value
    return found
