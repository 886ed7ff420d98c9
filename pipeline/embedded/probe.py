"""Asks a server two things over a bare socket, so that the keeper needs no client library: are you ready, and please stop."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_TIMEOUT_S = 0.5


class Condition(StrEnum):
    """How a server answers."""

    DOWN = "down"
    """It does not, or somebody else does."""
    LOADING = "loading"
    """It reads its data."""
    READY = "ready"
    """It serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens and as whom to ask it."""

    address: Path | tuple[str, int]
    """A Unix socket, or host and port."""
    user: str = ""
    """Empty where the default user needs no password."""
    password: str = ""

    def __repr__(self) -> str:
        return f"Endpoint({self.address}, user={self.user!r})"


def server_condition(endpoint: Endpoint, pid: int) -> Condition:
    """Whether the process `pid` serves at this endpoint.

    INFO is answered while data is loaded and also when the disk is full, and it names the process: a port can be taken by a stranger
    between choosing it and binding it, and a stranger may answer as well.
    """
    try:
        info = _ask(endpoint, b"INFO")
    except OSError:
        return Condition.DOWN
    if re.search(rb"^process_id:%d\r$" % pid, info, re.MULTILINE) is None:
        return Condition.DOWN
    return Condition.LOADING if re.search(rb"^(async_)?loading:1\r$", info, re.MULTILINE) else Condition.READY


def ask_to_stop(endpoint: Endpoint) -> None:
    """Asks a server whose pid we do not know for sure to end. Its append-only file is flushed; errors on the way do not keep it."""
    try:
        _ask(endpoint, b"SHUTDOWN", b"NOSAVE", b"FORCE")
    except OSError:  # it is gone already, or goes without an answer, as it should
        return


def _ask(endpoint: Endpoint, *command: bytes) -> bytes:
    """Sends a command, after AUTH where there is a user; answers the whole reply of a bulk string, or the line of any other."""
    family, address = _socket_address(endpoint)
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.connect(address)
        with sock.makefile("rb") as replies:
            if endpoint.user:
                sock.sendall(_packed(b"AUTH", endpoint.user.encode(), endpoint.password.encode()))
                if replies.readline() != b"+OK\r\n":
                    return b""
            sock.sendall(_packed(*command))
            head = replies.readline()
            return replies.read(int(head[1:]) + 2) if head.startswith(b"$") else head


def _socket_address(endpoint: Endpoint) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    if isinstance(endpoint.address, Path):
        return socket.AF_UNIX, str(endpoint.address)
    host, port = endpoint.address
    return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, port)


def _packed(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
