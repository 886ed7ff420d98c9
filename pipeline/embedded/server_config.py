"""The server's configuration: what is ours to decide, what a caller may change, and how it is written.

The configuration reaches the server on its standard input (`valkey-server -`): nothing of it stands in a command line, which every user of
the machine can read, and no file has to be kept in step with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.memory import default_maxmemory_bytes, memory_limit_bytes

AppendFsync = Literal["always", "everysec"]
"""`always`: an acknowledged write is on the disk. `everysec`: up to about two seconds of them can be lost with the process."""

Directive = tuple[str, ...]
"""A name and its values."""

MAX_BULK_BYTES = 512 << 20
"""`proto-max-bulk-len`: the largest value the server takes. It is the server's own default, written down because the bound on bodies must
stay below it."""

FOR_QUEUES: tuple[Directive, ...] = (("stream-node-max-bytes", "1024"),)
"""What makes any server cheaper for queues. An entry is deleted when its job moves on, and to find it the server walks its node of the
stream from the head. Nodes a quarter of the usual size take a twelfth off what a job costs."""

_OURS = frozenset(
    {"port", "bind", "tls-port", "unixsocket", "unixsocketperm", "dir", "daemonize", "pidfile", "logfile", "include"}
    | {"appendonly", "appendfsync", "appenddirname", "appendfilename", "save", "shutdown-on-sigterm"}
    | {"maxmemory", "maxmemory-policy", "proto-max-bulk-len", "user", "aclfile", "requirepass"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the first user of a data directory may choose; later users join what runs."""

    appendfsync: AppendFsync = "always"
    maxmemory_bytes: int | None = None
    """None: a share of what this machine or container allows (`memory.py`)."""
    stop_grace_s: float = 10.0
    """After SIGTERM, before SIGKILL. Nothing acknowledged is lost by the latter under `always`."""
    restart_cap_s: float = 5.0
    """The longest pause before a server that keeps ending is started again: what a full disk waits for after space came back."""
    extra: tuple[Directive, ...] = ()
    """More directives, for what is not ours: `(("slowlog-max-len", "1024"),)`."""

    def __post_init__(self) -> None:
        for name, *_ in self.extra:
            if name.lower() in _OURS:
                raise EmbeddedServerError(f"the directive {name!r} belongs to the keeper and cannot be set by the caller")


def base_directives(options: ServerOptions, data_dir: Path) -> list[Directive]:
    """What every server of ours has, wherever it listens."""
    maxmemory = options.maxmemory_bytes or default_maxmemory_bytes(memory_limit_bytes())
    return [
        ("dir", str(data_dir)),
        ("daemonize", "no"),
        ("loglevel", "notice"),
        ("appendonly", "yes"),
        ("appendfsync", options.appendfsync),
        ("aof-load-truncated", "yes"),  # the tail of a write that was never acknowledged must not keep the server down
        ("save", ""),  # the append-only file is the one truth
        ("shutdown-on-sigterm", "nosave", "force"),  # a full disk must not keep a server alive that was told to end
        ("maxmemory", str(maxmemory)),
        ("maxmemory-policy", "noeviction"),  # evicting a lease or a header loses a job
        ("proto-max-bulk-len", str(MAX_BULK_BYTES)),
        *FOR_QUEUES,
        *options.extra,
    ]


def embedded_directives(options: ServerOptions, data_dir: Path, socket: Path) -> list[Directive]:
    """A server on a Unix socket and nothing else, for the processes of one user on one machine."""
    return [("port", "0"), ("unixsocket", str(socket)), ("unixsocketperm", "700"), *base_directives(options, data_dir)]


def render(directives: Iterable[Directive]) -> str:
    """The text of a configuration, values quoted where the server's parser needs it."""
    return "".join(" ".join((name, *map(_quoted, values))) + "\n" for name, *values in directives)


def _quoted(value: str) -> str:
    if value and all(" " < c <= "~" and c not in "\"'\\" for c in value):
        return value
    escaped = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in value.encode())
    return f'"{escaped}"'
