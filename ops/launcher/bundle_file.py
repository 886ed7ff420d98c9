"""The bundle: one file with the project and the wheels of its packages, for machines without a network.

    manifest.json                    what it is for, and sha256, size and mode of every file below; always the first member
    rollstream/...                   the project
    wheels/*.whl                     the packages, setuptools and pip among them

A plain tar, so that `tar -xf` opens it anywhere; wheels are compressed already.

Invariants:

- The id of a bundle is the hash of its manifest, which has the hash of everything else. The same files make the same bytes: names in order,
  no times, no owners.
- What is unpacked is what the manifest lists, all of it, each file with its hash and size, below the folder it was given. Anything else
  is refused.
- A bundle is read once, from its beginning to its end; only its manifest is read to know whether that is needed.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from ops.launcher.bundle_target import Target

MANIFEST = "manifest.json"
PROJECT, WHEELS = "rollstream", "wheels"
FORMAT = 1
MOST_MANIFEST_BYTES = 16 * 2**20
"""Some thousand files have a tenth of it."""
PIECE_BYTES = 2**20
Progress = Callable[[str], None]


class BundleUnusable(Exception):
    """A bundle is damaged, of another kind, or for another machine; says what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a bundle."""

    sha256: str
    size: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle is for, and what is in it."""

    version: str
    """Of the project."""
    target: Target
    extras: tuple[str, ...]
    files: Mapping[str, Entry]

    def text(self) -> bytes:
        """As it stands in the bundle."""
        content = {
            "format": FORMAT,
            "version": self.version,
            "target": asdict(self.target),
            "extras": sorted(self.extras),
            "files": {name: asdict(self.files[name]) for name in sorted(self.files)},
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    @property
    def id(self) -> str:
        """Names the bundle by what is in it."""
        return hashlib.sha256(self.text()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(entry.size for entry in self.files.values())


def write_bundle(
    path: Path, sources: Mapping[str, Path], *, version: str, target: Target, extras: tuple[str, ...], progress: Progress
) -> Manifest:
    """Writes a bundle, whole or not at all; answers what is in it.

    Args:
        sources: name in the bundle -> file.
    """
    manifest = Manifest(version=version, target=target, extras=extras, files={name: _entry(source) for name, source in sources.items()})
    draft, done = path.with_name(f"{path.name}.part"), 0
    try:
        with draft.open("wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            text = manifest.text()
            _add(archive, MANIFEST, len(text), 0o644, _Bytes(text))
            for name in sorted(sources):
                entry = manifest.files[name]
                progress(f"{done / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB written: {name}")
                with sources[name].open("rb") as file:
                    _add(archive, name, entry.size, entry.mode, file)
                done += entry.size
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def read_manifest(path: Path) -> Manifest:
    """What a bundle says of itself: of a file, or of the folder into which one was unpacked.

    Raises:
        BundleUnusable: it is none.
        OSError: it cannot be read.
    """
    if path.is_dir():
        return _parse(path, (path / MANIFEST).read_bytes())
    with _opened(path) as members:
        return _first(path, members)


def unpack(path: Path, folder: Path, progress: Progress) -> None:
    """Unpacks a bundle into a folder that is not there yet.

    Raises:
        BundleUnusable: it is damaged; the folder is then there in part.
        OSError: it cannot be read, or not be written here.
    """
    folder.mkdir(mode=0o700, parents=True)
    with _opened(path) as members:
        manifest = _first(path, members)
        left, done = dict(manifest.files), 0
        for member, file in members:
            entry = left.pop(member.name, None)
            if entry is None or file is None:
                raise BundleUnusable(f"{path}: {member.name} is not in the list of the bundle, or is there twice: make it anew")
            progress(f"{done / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB unpacked")
            _write(path, folder / member.name, entry, file)
            done += entry.size
    if left:
        raise BundleUnusable(f"{path}: {min(left)} and {len(left) - 1} more files are missing: copy it again")
    (folder / MANIFEST).write_bytes(manifest.text())


def sha256_of(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(source: Path) -> Entry:
    return Entry(sha256_of(source), source.stat().st_size, 0o755 if os.access(source, os.X_OK) else 0o644)


class _Bytes:
    """The bytes of the manifest as a file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int = -1) -> bytes:
        piece, self._content = self._content[:size], self._content[size:]
        return piece


def _add(archive: tarfile.TarFile, name: str, size: int, mode: int, file: IO[bytes] | _Bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, 0
    archive.addfile(info, file)


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    """The members of a bundle, one after the other, with what is in those that are files."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|") as archive:
            yield ((member, archive.extractfile(member) if member.isreg() else None) for member in archive)
    except (tarfile.TarError, EOFError) as error:
        raise BundleUnusable(f"{path} is no bundle, or was copied in part ({error}): copy it again, and compare its sha256") from error


def _first(path: Path, members: Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]) -> Manifest:
    member, file = next(members, (None, None))
    if member is None or file is None or member.name != MANIFEST or member.size > MOST_MANIFEST_BYTES:
        raise BundleUnusable(f"{path} is no bundle: `./ops/launch bundle` makes one")
    return _parse(path, file.read())


def _parse(path: Path, text: bytes) -> Manifest:
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise BundleUnusable(f"{path} has format {found['format']}, this launcher reads {FORMAT}: take the launcher that is in it")
        files = {str(name): Entry(str(e["sha256"]), int(e["size"]), int(e["mode"])) for name, e in found["files"].items()}
        manifest = Manifest(
            version=str(found["version"]), target=Target(**found["target"]), extras=tuple(map(str, found["extras"])), files=files
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleUnusable(f"{path}: its list cannot be read ({error}): copy it again") from error
    for name in files:
        parts = PurePosixPath(name).parts
        if parts[0] not in (PROJECT, WHEELS) or len(parts) < 2 or ".." in parts or "\0" in name or str(PurePosixPath(name)) != name:
            raise BundleUnusable(f"{path}: {name!r} would lie elsewhere: this bundle was not made by `./ops/launch bundle`")
    return manifest


def _write(path: Path, target: Path, entry: Entry, file: IO[bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    seen, size = hashlib.sha256(), 0
    with target.open("xb") as out:
        while piece := file.read(PIECE_BYTES):
            seen.update(piece)
            size += len(piece)
            out.write(piece)
    if (seen.hexdigest(), size) != (entry.sha256, entry.size):
        raise BundleUnusable(f"{path}: {target.name} is not what the list of the bundle says: it is damaged, copy it again")
    target.chmod(0o755 if entry.mode & 0o100 else 0o644)
