"""Settings of vLLM servers. Argument > environment (`ROLLSTREAM_VLLM_<NAME>`) > `[vllm]` of `rollstream.toml` > default."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings


class VllmSettings(TableSettings):
    """What is the same for every server that is started on a machine."""

    table = "vllm"
    variables = f"{ENVIRONMENT_PREFIX}VLLM_"

    python: str = ""
    """Interpreter that has vLLM; empty = the one that runs this."""
    key_file: Path | None = None
    """File with the key that guards every route; none = no key."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """A server that does not answer by then is ended. Weights on a network disk take minutes."""
    drain_s: float = Field(default=30.0, ge=0, le=86_400)
    """After SIGTERM a server of a run gets no new jobs, and has this long for those that it has."""
    grace_s: float = Field(default=10.0, ge=0, le=600)
    """Then it has this long to end before it is killed."""
    cpu_threads: int = Field(default=0, ge=0)
    """Threads of a server on the CPU; 0 = the cores it may use."""
    cpu_kv_cache_mib: int = Field(default=256, ge=16)
    """Memory for keys and values of a server on the CPU, MiB."""
