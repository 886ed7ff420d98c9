"""Reads the head of a proxy request: `CONNECT host:port`, or a request for a whole `http://` address.

What is passed on of the second is built anew: our own request line and `Host`, and none of the headers that were meant for the proxy. One
request a connection: after it the stream belongs to the host that was judged, so no second request can be slipped to another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

MOST_HEAD_BYTES = 64 * 1024
HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HOP_HEADERS = frozenset({b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"upgrade", b"te", b"host"})


class BadRequest(ValueError):
    """No request a proxy understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """Where a client wants to go."""

    host: str
    port: int
    is_tunnel: bool
    forward: bytes = b""
    """The head that goes to the host; empty for a tunnel."""


def read_request(head: bytes) -> ProxyRequest:
    """Reads a head, up to and with its empty line.

    Raises:
        BadRequest
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise BadRequest("expected `CONNECT host:port HTTP/1.1` or `GET http://host/path HTTP/1.1`")
    method, target, _ = words
    try:
        text = target.decode("ascii")
        if method == b"CONNECT":
            host, port = _authority(text, None)
            return ProxyRequest(host=host, port=port, is_tunnel=True)
        parts = urlsplit(text)
        if parts.scheme.lower() != "http" or not parts.netloc or "@" in parts.netloc:
            raise BadRequest("expected an address that begins with http://, without a user")
        host, port = _authority(parts.netloc, 80)
    except UnicodeDecodeError:
        raise BadRequest("the address has characters that are not ASCII") from None
    except ValueError as error:
        raise BadRequest(str(error)) from None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in lines[1:] if _is_kept(line)]
    first = b"%s %s HTTP/1.1" % (method, path.encode("ascii"))
    return ProxyRequest(
        host=host,
        port=port,
        is_tunnel=False,
        forward=b"\r\n".join([first, b"Host: " + parts.netloc.encode("ascii"), *kept, b"Connection: close", b"", b""]),
    )


def _is_kept(line: bytes) -> bool:
    name, colon, _ = line.partition(b":")
    if not colon or not HEADER_NAME.fullmatch(name) or b"\n" in line or b"\r" in line or b"\0" in line:
        raise BadRequest(f"no header: {line[:60]!r}")
    return name.lower() not in HOP_HEADERS


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?", text)
    if not found or (found[2] is None and default_port is None):
        raise ValueError(f"expected host:port, got {text[:100]!r}")
    port = int(found[2]) if found[2] else default_port or 0
    if not 0 < port < 65536:
        raise ValueError(f"expected a port between 1 and 65535, got {port}")
    return found[1].removeprefix("[").removesuffix("]"), port
