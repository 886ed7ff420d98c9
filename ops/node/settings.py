"""What a launcher needs to know: table `[node]`, in the environment `ROLLSTREAM_NODE_<NAME>`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime

from pydantic import Field, field_validator

from ops.node.sizes import Size, default_size
from pipeline.errors import InvalidRequest
from pipeline.log_file import MOST_FILES
from pipeline.messages import Stage
from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings
from workers.settings import default_node

SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm 23.02 and newer, and by our template for older ones; s since 1970."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_EPOCH = re.compile(r"\d{9,11}", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class NodeSettings(TableSettings):
    """Settings of one node."""

    table = "node"
    variables = f"{ENVIRONMENT_PREFIX}NODE_"

    node: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$")
    """Name of it; empty = the host, with the Slurm job behind it when there is one."""
    init: str = ""
    """Size of INIT: slots (`8`), or processes and slots of each (`2x4`); empty = slots by cores."""
    run: str = ""
    """Size of RUN."""
    eval: str = ""
    """Size of EVAL."""
    supervisor: bool = True
    """Whether a supervisor runs here; any number may run."""
    grace_s: float = Field(default=60.0, ge=1, le=86_400)
    """What a drain may take."""
    until: str = ""
    """When the node ends: `8h`, `90m`, an ISO time or seconds since 1970. Its drain is done by then. Empty = with the Slurm job."""
    crashes: int = Field(default=5, ge=0, le=1000)
    """Crashes of one process in a row that are borne; one more ends the node."""
    log_max_mib: int = Field(default=32, ge=1, le=4096)
    """A log of the node that is as large is renamed, and a new one begun."""
    log_files: int = Field(default=8, ge=2, le=MOST_FILES)
    """Of them the newest stay."""
    metrics_port: int = Field(default=0, ge=-1, le=65_535)
    """Where the launcher answers `/metrics`; 0 = a free one, -1 = nowhere."""

    @field_validator("init", "run", "eval", mode="before")
    @classmethod
    def _may_be_a_number(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("init", "run", "eval")
    @classmethod
    def _is_size(cls, value: str) -> str:
        if value:
            _as_value_error(Size.parse, value)
        return value

    @field_validator("until")
    @classmethod
    def _is_time(cls, value: str) -> str:
        _as_value_error(lambda text: read_until(text, now_s=0.0), value)
        return value

    @property
    def node_name(self) -> str:
        """As it is used."""
        return self.node or default_node()

    def size(self, stage: Stage, cores: int) -> Size:
        """Of a stage, on so many cores."""
        text: str = getattr(self, stage.value)
        return Size.parse(text) if text else default_size(stage, cores)

    def ends_at_s(self, *, now_s: float, environ: Mapping[str, str] | None = None) -> float | None:
        """When the node ends, s since 1970; None = nobody said."""
        found = read_until(self.until, now_s=now_s)
        slurm = (os.environ if environ is None else environ).get(SLURM_END, "")
        return found if found is not None else float(slurm) if _EPOCH.fullmatch(slurm) else None


def read_until(text: str, *, now_s: float) -> float | None:
    """A moment as people write it, s since 1970; None for an empty text.

    Raises:
        InvalidRequest: it is no time.
    """
    if not text:
        return None
    if found := _DURATION.fullmatch(text):
        return now_s + float(found[1]) * _SECONDS[found[2]]
    if _EPOCH.fullmatch(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InvalidRequest(f"{text!r} is no time: expected 8h, 90m, 2026-12-01T06:00 or seconds since 1970") from None


def _as_value_error(read: object, value: str) -> None:
    """Pydantic takes a ValueError for its own."""
    assert callable(read)
    try:
        read(value)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
