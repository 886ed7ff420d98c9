"""The store that settings name."""

from __future__ import annotations

from pipeline.blobs.settings import BlobSettings
from pipeline.blobs.shared_folder import SharedFolder


def open_store(settings: BlobSettings, namespace: str) -> SharedFolder | None:
    """The store; None when no folder is set."""
    if settings.dir is None:
        return None
    return SharedFolder(
        settings.dir.expanduser(),
        namespace,
        max_bytes=settings.max_bytes,
        min_free_bytes=settings.min_free_bytes,
        fsync=settings.fsync,
    )


__all__ = ["open_store"]
