"""What a gateway needs to know beside the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from ops.gateway.model_hosts import ModelHosts
from pipeline.errors import InvalidRequest
from pipeline.requests import DAY_S, run_id
from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings

MIB = 1024 * 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class GatewaySettings(TableSettings):
    """Settings of one gateway process."""

    table = "gateway"
    variables = f"{ENVIRONMENT_PREFIX}GATEWAY_"

    run: str = "gateway"
    """The run whose one live client this is."""
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on; one that others reach needs token files."""
    port: int = Field(default=8006, ge=0, le=65_535)
    """0 = a free one, which the start line names."""
    socket: Path | None = None
    """A Unix socket in place of host and port, for the owner of this process."""
    trainer_token_file: Path | None = None
    """File with tokens, one a line, for everything."""
    ops_token_file: Path | None = None
    """For looking, opening and closing, cancelling and naming model servers."""
    read_token_file: Path | None = None
    """For looking."""
    timeout_s: float = Field(default=300.0, ge=0.1, le=7 * DAY_S)
    """Of `/process`: active time of each stage; a job has twice that and 10 s by the wall clock."""
    requests_file: Path | None = None
    """JSON for `/process`: what its requests cannot say (chat, options, capability, ...), by task, and under `*` for all."""
    tasks: tuple[str, ...] = ()
    """Tasks that only the workers have installed, beside those that are known here."""
    sources: tuple[str, ...] = ()
    """`data_source=task`, beside the built-in ones."""
    model_hosts: tuple[str, ...] = ()
    """Hosts that `/add_llm_server` may name beside this machine: names (`*` = any characters but a dot), networks; `*` = all."""
    max_body_bytes: int = Field(default=16 * MIB, ge=1024)
    """Most bytes of one request."""
    max_bodies_bytes: int = Field(default=256 * MIB, ge=1024)
    """Of all requests that are being read."""
    max_answers_bytes: int = Field(default=256 * MIB, ge=1024)
    """Of answers with trajectories that clients have not read yet; further ones wait."""
    max_open_bytes: int = Field(default=1024 * MIB, ge=1024)
    """Of all requests whose jobs have not ended."""
    max_connections: int = Field(default=2048, ge=1, le=100_000)
    max_streams: int = Field(default=64, ge=0, le=10_000)
    """Readers of `/events` at once."""
    head_s: float = Field(default=15.0, gt=0, le=3600)
    """From the first byte of a request, or from the connection, to the end of its headers."""
    body_s: float = Field(default=60.0, gt=0, le=3600)
    write_s: float = Field(default=60.0, gt=0, le=3600)
    """For a client to read its answer, or a piece of a stream."""
    idle_s: float = Field(default=75.0, gt=0, le=3600)
    """For a connection without a request."""
    grace_s: float = Field(default=30.0, ge=0, le=DAY_S)
    """From SIGTERM until open calls are told where their results will be."""
    keep_delivered_s: float = Field(default=3600.0, ge=0, le=30 * DAY_S)
    """A result is let go so long after it was delivered."""
    keep_unasked_s: float = Field(default=2 * DAY_S, ge=0, le=30 * DAY_S)
    """A result that nobody fetched is let go so long after its job ended."""
    max_kept: int = Field(default=100_000, ge=1)
    """Results that are kept and jobs that are open; beyond, delivered ones go early, then jobs are refused."""

    @field_validator("run")
    @classmethod
    def _is_run(cls, run: str) -> str:
        try:
            return run_id(run)
        except InvalidRequest as wrong:
            raise ValueError(str(wrong)) from None

    @field_validator("sources")
    @classmethod
    def _are_pairs(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for pair in sources:
            source, equals, task = pair.partition("=")
            if not source or not equals or not task:
                raise ValueError(f"expected data_source=task, got {pair!r}")
        return sources

    @field_validator("model_hosts")
    @classmethod
    def _are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        ModelHosts(hosts)
        return hosts

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ValueError(f"expected max_bodies_bytes ({self.max_bodies_bytes}) to be at least max_body_bytes ({self.max_body_bytes})")
        return self

    @property
    def token_files(self) -> Mapping[str, Path]:
        """By role, as far as there are any."""
        files = {"trainer": self.trainer_token_file, "ops": self.ops_token_file, "read": self.read_token_file}
        return {role: path for role, path in files.items() if path is not None}

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return self.socket is not None or self.host in LOOPBACK

    @property
    def wall_s(self) -> float:
        """Wall time of a job of `/process`, waiting in queues included."""
        return 2 * self.timeout_s + 10


__all__ = ["LOOPBACK", "GatewaySettings"]
