"""Settings of housekeeping. Argument > environment (`ROLLSTREAM_HOUSEKEEPING_<NAME>`) > `[housekeeping]` of `rollstream.toml` > default."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.keys import NODE_NAME
from pipeline.settings import ADDRESSES, DAY_S, ENVIRONMENT_PREFIX, TableSettings

HOUR_S = 3600.0
IMAGES = "images"
SHARED = "housekeeping"


class HousekeepingSettings(TableSettings):
    """Where the queue of housekeeping is, how often each of its jobs runs, and how long things are kept."""

    table = "housekeeping"
    variables = f"{ENVIRONMENT_PREFIX}HOUSEKEEPING_"

    redis_url: str = ""
    """A standalone Redis, by address; empty = the queue's own, with its user and password."""
    redis_user: str = ""
    """User at `redis_url`."""
    redis_password_file: Path | None = None
    """File with that user's password; read again at each new connection."""
    queue: str = Field(default=IMAGES, pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    """Queue of pulls and builds of images; several keep kinds of machines apart."""
    node: str = Field(default="", max_length=64)
    """Name of this machine among those whose leftovers are removed; empty = its host name."""
    bodies_every_s: float = Field(default=HOUR_S, ge=0, le=30 * DAY_S)
    """Between two runs of the job `bodies`. 0 = never, for each of these."""
    runs_every_s: float = Field(default=HOUR_S, ge=0, le=30 * DAY_S)
    streams_every_s: float = Field(default=600.0, ge=0, le=30 * DAY_S)
    blobs_every_s: float = Field(default=HOUR_S, ge=0, le=30 * DAY_S)
    dead_letters_every_s: float = Field(default=HOUR_S, ge=0, le=30 * DAY_S)
    export_every_s: float = Field(default=300.0, ge=0, le=30 * DAY_S)
    leftovers_every_s: float = Field(default=HOUR_S, ge=0, le=30 * DAY_S)
    images_every_s: float = Field(default=HOUR_S, ge=0, le=30 * DAY_S)
    gone_run_keep_s: float = Field(default=0.0, ge=0, le=366 * DAY_S)
    """A run that was closed because its trainer was gone is forgotten so long after; 0 = its keys live out their time."""
    events_keep_s: float = Field(default=DAY_S, ge=60, le=366 * DAY_S)
    """Age from which entries of `s:reward` and `s:cancel` are trimmed, when every group has read them."""
    dead_letters_keep_s: float = Field(default=30 * DAY_S, ge=60, le=366 * DAY_S)
    """The same of `s:dead`, and of the reports about it."""
    logs_keep_s: float = Field(default=30 * DAY_S, ge=60, le=366 * DAY_S)
    """Logs in the state folder that nothing was written to for so long are removed."""
    export_runs: tuple[str, ...] = ()
    """Runs whose results are exported, by name or pattern (`swe-*`)."""
    export_dir: Path | None = None
    """Folder that gets one a run; none = nothing is exported."""
    export_format: Literal["parquet", "jsonl"] = "parquet"

    @field_validator("redis_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        """What came is not repeated: there may be a password in it."""
        if url and not url.startswith(ADDRESSES):
            raise ValueError("expected redis://host:port/0, rediss://host:port/0 or unix:///path, or nothing for the queue's own server")
        return url

    @field_validator("node")
    @classmethod
    def _is_node(cls, node: str) -> str:
        if node and not NODE_NAME.match(node):
            raise ValueError("expected letters, digits, _ . and -, a letter or digit first")
        return node

    @property
    def this_node(self) -> str:
        """Name of this machine."""
        return self.node or socket.gethostname()


__all__ = ["IMAGES", "SHARED", "HousekeepingSettings"]
