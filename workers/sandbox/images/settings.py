"""Settings of images. Argument > environment (`ROLLSTREAM_IMAGE_<NAME>`) > `[image]` of `rollstream.toml` > default."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings

GIB = 1024**3


class ImageSettings(TableSettings):
    """Where images are, and how much of the disk they may take."""

    table = "image"
    variables = f"{ENVIRONMENT_PREFIX}IMAGE_"

    shared_dir: Path | None = None
    """Names and SIF files, for all nodes; none = `images` in the state folder."""
    node_dir: Path | None = None
    """Extracted images of this node, on its own disk; none = `images` in the scratch folder."""
    budget_gib: float = Field(default=100.0, gt=0)
    """What extracted images may take of this node's disk."""
    high_mark: float = Field(default=0.8, gt=0, le=1)
    """Share of the budget above which unused images are removed."""
    low_mark: float = Field(default=0.6, ge=0, le=1)
    """Share of it down to which they are."""
    max_image_gib: float = Field(default=32.0, gt=0)
    """What one image may unpack to."""
    max_entries: int = Field(default=2_000_000, ge=1)
    """Files and folders that one image may have."""
    apptainer: str = ""
    """Apptainer or Singularity; empty = the one on the path."""
    timeout_s: float = Field(default=3600.0, gt=0)
    """Longest run of a program that fetches, packs or unpacks an image, or of a build's script."""
    parallel: int = Field(default=2, ge=1, le=64)
    """Images that one command brings at once."""

    @model_validator(mode="after")
    def _marks_are_in_order(self) -> Self:
        if self.low_mark > self.high_mark:
            raise ValueError(f"low_mark is {self.low_mark}, expected at most high_mark ({self.high_mark})")
        return self
