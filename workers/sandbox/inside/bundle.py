"""The execution server as one file: a zip of sources that Python runs as it is.

1. The same sources give the same bytes, everywhere: names sorted, no times, nothing compressed or compiled. Its name is their hash.
2. Modules have the names they have here, so they import each other as they do here. Packages on the way are empty: nothing else of
   Rollstream is in it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import resources

MODULES = (
    "workers.sandbox.file_tree",
    "workers.sandbox.inside.guest.children",
    "workers.sandbox.inside.guest.file_operations",
    "workers.sandbox.inside.guest.frames",
    "workers.sandbox.inside.guest.server",
    "workers.sandbox.local.holder.becoming",
    "workers.sandbox.local.holder.descendants",
    "workers.sandbox.local.holder.entering",
    "workers.sandbox.local.holder.keeper",
    "workers.sandbox.local.holder.starting",
)
MAIN = "workers.sandbox.inside.guest.__main__"
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A zip that can be run."""

    name: str
    content: bytes


@cache
def server_bundle() -> Bundle:
    """The execution server. Put together once a process, from wherever this package was installed to; blocks for some milliseconds."""
    files = {f"{module.replace('.', '/')}.py": source(module) for module in MODULES}
    for module in MODULES:
        parts = module.split(".")[:-1]
        files.update({f"{'/'.join(parts[:depth])}/__init__.py": b"" for depth in range(1, len(parts) + 1)})
    files["__main__.py"] = source(MAIN)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o444 << 16
            archive.writestr(entry, files[name])
    return Bundle(name=f"{hashlib.sha256(content.getvalue()).hexdigest()[:32]}.pyz", content=content.getvalue())


def source(module: str) -> bytes:
    """The text of a module of ours."""
    package, _, name = module.rpartition(".")
    return resources.files(package).joinpath(f"{name}.py").read_bytes()
