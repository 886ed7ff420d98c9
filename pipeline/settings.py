"""What a process needs to know to take part in the queue. One frozen object a process, read once in its `main`.

Precedence: argument > environment (`ROLLSTREAM_<NAME>`) > `rollstream.toml` > default. Unknown keys in the file are errors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from pipeline.errors import InvalidRequest
from pipeline.redis_address import parse_redis_url

ENVIRONMENT_PREFIX = "ROLLSTREAM_"
ADDRESSES = ("redis://", "rediss://", "unix://")
"""Of one server."""
DAY_S = 86_400.0
MAX_UNREAD = 200_000


class TableSettings(BaseModel):
    """Settings that stand in one table of `rollstream.toml`, and in variables of the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    table: ClassVar[str]
    variables: ClassVar[str]
    """What their variables begin with."""

    @classmethod
    def load(cls, file: Path | None = None, **arguments: object) -> Self:
        """Reads the settings of this process.

        Args:
            file: a `rollstream.toml`. Default: the one in the current folder, when there is one.
            arguments: what the command line said; None means not said.

        Raises:
            InvalidRequest: an unknown key or a value that does not fit, with its name.
        """
        found = dict(read_table(file, cls.table))
        for name, field in cls.model_fields.items():
            value = os.environ.get(cls.variables + name.upper())
            if value:
                found[name] = value.split(",") if isinstance(field.default, tuple) else value
        found.update({name: value for name, value in arguments.items() if value is not None})
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, (cls.table, *first["loc"])))
            raise InvalidRequest(first["msg"].removeprefix("Value error, "), field=where) from error


class QueueSettings(TableSettings):
    """Settings of the queue, the same for every kind of process."""

    table = "queue"
    variables = ENVIRONMENT_PREFIX

    redis_url: str = ""
    """`unix://`, `redis://`, `redis+sentinel://` or `redis+cluster://` (`rediss` with TLS); empty = the embedded server of this machine."""
    redis_password_file: Path | None = None
    """File with the password; read again at each new connection."""
    redis_user: str = ""
    redis_ca_file: Path | None = None
    """Certificates that servers must be signed by (`rediss`); default: those that this machine trusts."""
    redis_cert_file: Path | None = None
    """Our certificate, for servers that ask for one."""
    redis_key_file: Path | None = None
    """Its key."""
    wait_replicas: int = Field(default=0, ge=0, le=10)
    """A script is answered only when so many replicas have what it wrote."""
    namespace: str = Field(default="rs", pattern=r"^[a-z][a-z0-9]{0,15}$")
    shards: int = Field(default=1, ge=1, le=64)
    lease_s: float = Field(default=30.0, gt=0.2, le=86_400)
    """A job whose worker gave no sign for this long is run again. At least six times the longest stall of the worker's machine."""
    retry_backoff_s: float = Field(default=1.0, ge=0, le=86_400)
    retry_backoff_max_s: float = Field(default=60.0, ge=0, le=86_400)
    admit_window: int = Field(default=256, ge=1)
    """Claimable jobs that INIT's stream may hold; the rest waits in the queue of its run, where priority and fairness are judged."""
    max_waiting: int = Field(default=1_000_000, ge=1)
    """Most waiting jobs of one run."""
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Most bytes of one body."""
    max_unread: int = Field(default=MAX_UNREAD, ge=1)
    """Records in the results of one run that its trainer has not acked, beyond which groups are launched for its oldest open step only."""
    run_ttl_s: float = Field(default=7 * 86_400.0, ge=0.1, le=366 * 86_400)
    """A run whose trainer gave no sign for this long is closed. Its keys live as long again, and at least a day."""

    @field_validator("redis_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        """What came is not repeated: there may be a password in it."""
        if url:
            parse_redis_url(url)
        return url

    @model_validator(mode="after")
    def _fits_its_address(self) -> Self:
        servers = parse_redis_url(self.redis_url) if self.redis_url else None
        if servers and self.redis_password_file is not None and (servers.user or servers.password):
            raise ValueError("redis_url holds a user or a password, and redis_password_file is set too: name the user in redis_user")
        files = (self.redis_ca_file, self.redis_cert_file, self.redis_key_file)
        if servers and any(files) and not servers.tls:
            raise ValueError("redis_ca_file, redis_cert_file and redis_key_file are for TLS: redis_url must begin with rediss")
        if (self.redis_cert_file is None) != (self.redis_key_file is None):
            raise ValueError("redis_cert_file and redis_key_file go together")
        return self

    @property
    def run_keys_ttl_s(self) -> float:
        """How long the keys of a run outlive the last sign of its trainer: it must be closed before it is forgotten."""
        return self.run_ttl_s + max(self.run_ttl_s, DAY_S)

    @property
    def password(self) -> SecretStr | None:
        """The password in `redis_password_file`, read now.

        Raises:
            OSError: it cannot be read; it may be there again for the next connection.
        """
        if self.redis_password_file is None:
            return None
        try:
            return SecretStr(self.redis_password_file.read_text(encoding="utf-8").strip())
        except OSError as error:
            text = f"redis_password_file cannot be read: {error.strerror}"
            raise OSError(error.errno, text, str(self.redis_password_file)) from error


def read_table(file: Path | None, table: str) -> dict[str, object]:
    """One table of `rollstream.toml`; empty when there is no file or no such table."""
    path = file or Path("rollstream.toml")
    if not path.exists():
        if file is not None:
            raise InvalidRequest(f"{path} does not exist")
        return {}
    import tomllib

    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    found = parsed.get(table, {})
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path}: [{table}] must be a table")
    return found
