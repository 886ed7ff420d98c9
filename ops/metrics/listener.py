"""Answers `GET /metrics`, and nothing else. One request a connection.

Invariants:
  1. A client has `HEAD_S` for its head of at most `HEAD_BYTES`, and `WRITE_S` to read its answer; at most `MOST` are served at once.
  2. With a token file, who brings none of its tokens learns nothing. Without, only requests for this machine are answered: a web page that
     names us by another name is none.
  3. An answer that cannot be made is a 500 without a reason; the log has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import structlog

from ops.metrics.definitions import CONTENT_TYPE
from ops.metrics.settings import LOOPBACK, MetricsSettings
from ops.tcp_listener import tcp_socket, url_of
from ops.token_files import TokenFile, read_tokens, token_in
from pipeline.errors import InvalidRequest

log = structlog.get_logger(__name__)

PATH = "/metrics"
HEAD_BYTES = 16_384
HEAD_S, WRITE_S = 5.0, 10.0
MOST = 32
PLAIN = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class _Refused(Exception):
    """What is answered in place of metrics."""

    def __init__(self, status: int, why: str, *headers: str) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers


@asynccontextmanager
async def listening(settings: MetricsSettings, port: int, answer: Callable[[], Awaitable[bytes]], *, field: str) -> AsyncIterator[str]:
    """Answers while the block runs; gives the address.

    Args:
        port: 0 = a free one.
        answer: makes the metrics, as text.
        field: the setting that has the port, for who reads the error.

    Raises:
        InvalidRequest: the address is taken, or the token file is none.
    """
    tokens = None if settings.token_file is None else TokenFile(settings.token_file)
    if settings.token_file is not None:
        read_tokens(settings.token_file)
    try:
        sock = tcp_socket(settings.host, port)
    except OSError as error:
        where = f"{settings.host}:{port}"
        raise InvalidRequest(f"cannot listen on {where}: {error.strerror or error}. Choose another, or port 0", field=field) from None
    server = await asyncio.start_server(_Answers(tokens, answer).serve, sock=sock, limit=HEAD_BYTES)
    try:
        yield url_of(sock)
    finally:
        server.close()


class _Answers:
    """What all connections have in common."""

    def __init__(self, tokens: TokenFile | None, answer: Callable[[], Awaitable[bytes]]) -> None:
        self._tokens, self._answer = tokens, answer
        self._answering = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._response(head))
            async with asyncio.timeout(WRITE_S):
                await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(_whole(400, b"the head of the request is too long\n"))
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # nobody is there to be told
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(WRITE_S):
                    await writer.wait_closed()

    async def _response(self, head: bytes) -> bytes:
        try:
            method = self._check(head)  # who may not ask, or says nothing, takes no place of one who may
            if self._answering >= MOST:
                raise _Refused(503, f"{MOST} requests are being answered")
            self._answering += 1
            try:
                body = await self._answer()
            except Exception as error:
                log.exception("metrics_not_made")
                raise _Refused(500, "the log of this process has the reason") from error
            finally:
                self._answering -= 1
        except _Refused as refused:
            return _whole(refused.status, f"{refused}\n".encode(), *refused.headers)
        return _whole(200, body, content_type=CONTENT_TYPE, is_head=method == "HEAD")

    def _check(self, head: bytes) -> str:
        """The method, when the request may be answered."""
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _Refused(400, "expected a request of HTTP/1.1")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        self._let_in(headers)
        if words[1].partition("?")[0] != PATH:
            raise _Refused(404, f"there is {PATH}, and nothing else")
        if words[0] not in ("GET", "HEAD"):
            raise _Refused(405, f"expected GET {PATH}", "Allow: GET, HEAD")
        return words[0]

    def _let_in(self, headers: Mapping[str, str]) -> None:
        if self._tokens is None:
            if _host(headers.get("host", "")) not in LOOPBACK:
                raise _Refused(403, "without a token file only requests for this machine are answered (Host: 127.0.0.1)")
            return
        token = token_in(headers.get("authorization", ""))
        if token is None or not self._tokens.knows(token):
            raise _Refused(401, "expected a token of metrics.token_file, as `Authorization: Bearer TOKEN`", "WWW-Authenticate: Bearer")


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _whole(status: int, body: bytes, *headers: str, content_type: str = PLAIN, is_head: bool = False) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + (b"" if is_head else body)
