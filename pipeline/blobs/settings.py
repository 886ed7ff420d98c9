"""Where blobs lie and how many there may be: `[blobs]` of `rollstream.toml`, `ROLLSTREAM_BLOBS_*`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings

GIB = 1024**3


class BlobSettings(TableSettings):
    """Settings of the store, the same for RUN workers and trainers."""

    table = "blobs"
    variables = f"{ENVIRONMENT_PREFIX}BLOBS_"

    dir: Path | None = None
    """A folder that RUN workers and trainers share, of one Redis alone; None = no store."""
    max_bytes: int = Field(default=GIB, ge=1024)
    """Most bytes of one blob."""
    min_free_bytes: int = Field(default=GIB, ge=0)
    """Nothing is kept that would leave the disk less."""
    fsync: bool = True
    """Whether a blob is on the disk before a record names it. Off: a machine that loses its power may lose what records name."""


__all__ = ["BlobSettings"]
