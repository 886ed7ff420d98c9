"""The right to use an extracted image: as long as a lease is open, nothing removes the files.

The lease is a shared `flock` on the file `lease` beside the image's tree, so it ends with the last process that has the descriptor, also by
`kill -9`. Who runs a sandbox in a process of its own may hand `fileno()` to it: then the files outlive the process that asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self


class ImageLease:
    """One use of one image; a context manager that gives it up.

    Args:
        name: what was asked for.
        digest: what that name means: the content, 64 hex digits.
        root: the tree. Read-only by convention: it is the lower layer of every sandbox that uses it.
        env: variables that the image's maker set, `PATH` among them; they go under those of the task.
        workdir: where the image's maker wanted commands to start; empty = nowhere in particular.
        descriptor: open and locked; the lease closes it.
    """

    def __init__(self, *, name: str, digest: str, root: Path, env: Mapping[str, str], workdir: str, descriptor: int) -> None:
        self.name = name
        self.digest = digest
        self.root = root
        self.env = MappingProxyType(dict(env))
        self.workdir = workdir
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor whose lock is the lease."""
        return self._descriptor

    def close(self) -> None:
        """Gives the lease up. Twice is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ImageSource(Protocol):
    """What a provider of sandboxes needs of an image store."""

    def lease(self, name: str) -> ImageLease:
        """The image of that name, extracted on this node. Blocks, for as long as an extraction takes where this node has not done it yet.

        Raises:
            ImageMissing: no image of that name is known, or its files cannot be read from here. Nothing is fetched.
            ImageError: it could not be extracted.
        """
