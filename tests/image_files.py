"""Small images for tests, made of bytes: layers, layouts, archives, SIF files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

Member = tuple[tarfile.TarInfo, bytes]
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def a_member(name: str, kind: bytes = tarfile.REGTYPE, *, content: bytes = b"", mode: int = 0o644, link: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.linkname, info.mtime = kind, len(content), mode, link, 1_700_000_000
    return info, content


def a_file(name: str, content: bytes = b"", mode: int = 0o644) -> Member:
    return a_member(name, content=content, mode=mode)


def a_folder(name: str, mode: int = 0o755) -> Member:
    return a_member(name, tarfile.DIRTYPE, mode=mode)


def a_link(name: str, target: str) -> Member:
    return a_member(name, tarfile.SYMTYPE, link=target)


def a_hard_link(name: str, target: str) -> Member:
    return a_member(name, tarfile.LNKTYPE, link=target)


def a_layer(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002 - tarfile's own word
    """An uncompressed layer."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def a_layout(path: Path, *layers: bytes, env: Sequence[str] = (), workdir: str = "", name: str = "", is_compressed: bool = True) -> Path:
    """A layout in a new folder."""
    (path / "blobs" / "sha256").mkdir(parents=True)
    packed = [gzip.compress(layer, mtime=0) if is_compressed else layer for layer in layers]
    about = {
        "architecture": MACHINE,
        "os": "linux",
        "config": {"Env": list(env), "WorkingDir": workdir},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }
    config = {**add_blob(path, json.dumps(about).encode()), "mediaType": "application/vnd.oci.image.config.v1+json"}
    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if is_compressed else "")
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": config,
        "layers": [{**add_blob(path, layer), "mediaType": kind} for layer in packed],
    }
    entry = {**add_blob(path, json.dumps(manifest).encode()), "mediaType": _MANIFEST, "platform": {"os": "linux", "architecture": MACHINE}}
    if name:
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    write_index(path, entry)
    return path


def add_blob(path: Path, content: bytes) -> dict[str, object]:
    """Puts a blob into a layout, and answers what refers to it."""
    digest = hashlib.sha256(content).hexdigest()
    (path / "blobs" / "sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def write_index(path: Path, *entries: dict[str, object]) -> None:
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def an_archive(path: Path, layout: Path) -> Path:
    """A layout as one file."""
    with tarfile.open(path, "w") as tar:
        for file in sorted(layout.rglob("*")):
            tar.add(file, file.relative_to(layout), recursive=False)
    return path


def a_simple_archive(folder: Path, content: bytes = b"hello", *, layers: int = 1) -> Path:
    """An archive whose first layer has `bin/hello`; each further one has a file of its own."""
    more = [a_layer(a_file(f"layer{i}", b"x" * 100)) for i in range(1, layers)]
    name = hashlib.sha256(content).hexdigest()[:8]
    layout = a_layout(
        folder / f"layout-{name}", a_layer(a_file("bin/hello", content, 0o755)), *more, env=["PATH=/opt/bin:/bin"], workdir="/srv"
    )
    return an_archive(folder / f"{name}.tar", layout)


def a_sif(path: Path, tree: Path) -> Path:
    """A SIF file of a tree: header, a table with one entry, and a squashfs made by mksquashfs."""
    if shutil.which("mksquashfs") is None or shutil.which("unsquashfs") is None:
        pytest.skip("squashfs-tools is not installed")
    squashfs = path.with_suffix(".squashfs")
    subprocess.run(["mksquashfs", tree, squashfs, "-quiet", "-no-progress", "-all-root"], check=True, capture_output=True, timeout=30)
    content = squashfs.read_bytes()
    squashfs.unlink()
    table, data = 4096, 4096 + 585
    header = b"#!/usr/bin/env run-singularity\n\0".ljust(32, b"\0") + b"SIF_MAGIC\x0001\x0002\0"
    header = header.ljust(80, b"\0") + struct.pack("<qqqqqq", 0, 1, table, 585, data, len(content))
    entry = struct.pack("<i?IIIqq", 0x4004, True, 1, 0xF0000001, 0, data, len(content)).ljust(585, b"\0")
    path.write_bytes(header.ljust(table, b"\0") + entry + content)
    return path
