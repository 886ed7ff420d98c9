"""Settings of `rollstream llm serve`. Argument > environment (`ROLLSTREAM_VLLM_<NAME>`) > `[vllm]` of `rollstream.toml` > default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import InvalidRequest
from pipeline.settings import ENVIRONMENT_PREFIX, read_table


class VllmSettings(BaseModel):
    """What is the same for every server that is started on a machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    python: str = ""
    """Interpreter that has vLLM; empty = the one that runs this."""
    key_file: Path | None = None
    """File with the key that guards `/v1` and `/inference`; none = no key."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """A server that does not answer by then is ended. Weights on a network disk take minutes."""
    grace_s: float = Field(default=10.0, ge=0, le=600)
    """After SIGTERM a server has this long before it is killed."""
    cpu_threads: int = Field(default=0, ge=0)
    """Threads of a server on the CPU; 0 = the cores it may use."""
    cpu_kv_cache_mib: int = Field(default=256, ge=16)
    """Memory for keys and values of a server on the CPU, MiB."""

    @classmethod
    def load(cls, file: Path | None = None, **arguments: object) -> Self:
        """Reads the settings; an argument that is None was not said.

        Raises:
            InvalidRequest: an unknown key or a value that does not fit, with its name.
        """
        found = dict(read_table(file, "vllm"))
        for name in cls.model_fields:
            value = os.environ.get(f"{ENVIRONMENT_PREFIX}VLLM_{name.upper()}")
            if value:
                found[name] = value
        found.update({name: value for name, value in arguments.items() if value is not None})
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InvalidRequest(first["msg"].removeprefix("Value error, "), field="vllm." + ".".join(map(str, first["loc"]))) from error
