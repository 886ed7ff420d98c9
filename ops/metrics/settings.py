"""Where metrics are answered: table `[metrics]`, in the environment `ROLLSTREAM_METRICS_<NAME>`. Exporters and nodes read it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class MetricsSettings(TableSettings):
    """Settings of who answers `/metrics`."""

    table = "metrics"
    variables = f"{ENVIRONMENT_PREFIX}METRICS_"

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on; one that others reach needs a token file."""
    port: int = Field(default=8007, ge=0, le=65_535)
    """Of the exporter (a node's is `[node] metrics_port`); 0 = a free one."""
    token_file: Path | None = None
    """File with tokens, one a line: who scrapes sends one of them as `Authorization: Bearer TOKEN`."""
    targets_dir: Path | None = None
    """Folder of target files for Prometheus's `file_sd`; none = none are written."""

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        if self.host not in LOOPBACK and self.token_file is None:
            raise ValueError(f"whoever reaches {self.host} could read metrics: give metrics.token_file, or listen on 127.0.0.1")
        return self
