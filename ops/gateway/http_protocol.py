"""HTTP as aiohttp speaks it, with refusals of one shape for what it refuses itself: bytes that are no HTTP, heads beyond its bounds, broken
chunks, an `Expect` that nobody meets.

Invariants
    - Each of these answers is as small as any refusal and repeats nothing of what came.
    - Its connection is closed. What still comes on it is read for a short while and dropped: a connection that is closed with bytes unread
      loses its last answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from http import HTTPStatus
from logging import Logger

from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine, HttpProcessingError, InvalidURLError, LineTooLong

from ops.gateway.refusals import Refusal

DRAIN_S = 1.0
"""For what a client still sends behind something that is no HTTP."""
TLS = "Received HTTPS"
REASON = re.compile(r"[A-Za-z][A-Za-z'` -]{7,79}(?=[:.\n]|\Z)")
"""The parser's own words, which stand before what it read."""


class HttpProtocol(web.RequestHandler):
    """Speaks HTTP on one connection."""

    __slots__ = ("_is_refused",)

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop, idle_s: float, linger_s: float, logger: Logger) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=idle_s,
            lingering_time=linger_s,
            logger=logger,
            access_log=None,  # type: ignore[arg-type]  # none is kept: what aiohttp's own runner passes for that
            auto_decompress=False,
        )
        self._is_refused = False

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is answered when no handler could be asked, or one broke."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: another one would be read as part of it")
        if status == HTTPStatus.BAD_REQUEST:
            refusal = Refusal(status, "not_http", what_is_wrong(exc))
        else:
            refusal = Refusal(status, "internal", "an error that nobody foresaw: the gateway's log has more")
        return self._last(refusal)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Writes an answer. aiohttp's own, of what it looks at before handlers, get the shape of the others."""
        if isinstance(resp, web.HTTPException):
            detail = "expected no header Expect but 100-continue" if resp.status == HTTPStatus.EXPECTATION_FAILED else resp.reason
            resp = self._last(Refusal(resp.status, "refused", detail))
        written = await super().finish_response(request, resp, start_time)
        if self._is_refused:
            await self._drain()
        return written

    def _last(self, refusal: Refusal) -> web.Response:
        self._is_refused = True
        response = refusal.response()
        response.force_close()
        return response

    async def _drain(self) -> None:
        """Reads on for a while, or until the client has closed, which ends this task."""
        self.close()  # drops what comes from here on
        if self.transport is not None and self.transport.can_write_eof():
            with contextlib.suppress(OSError):
                self.transport.write_eof()
            await asyncio.sleep(DRAIN_S)


def what_is_wrong(error: BaseException | None) -> str:
    """A sentence on what cannot be read as a request, made of the kind of error: its text would repeat what came."""
    if isinstance(error, LineTooLong):
        return "a line of the request's head is too long: send long content in the body"
    if isinstance(error, BadStatusLine) and error.message.startswith(TLS):
        return "this is HTTP without TLS: use http:// in the address, or a proxy for TLS"
    if isinstance(error, BadStatusLine):
        return "expected a first line such as GET /status HTTP/1.1, got one that cannot be read"
    if isinstance(error, InvalidURLError):
        return "the address in the first line cannot be read: expected a path such as /jobs/ID, with %XX for what is no ASCII"
    said = error.message if isinstance(error, HttpProcessingError) else ""
    reason = REASON.match(said)
    return "expected a request of HTTP/1.1, got what cannot be read as one" + (f": {reason[0].strip()}" if reason else "")


__all__ = ["HttpProtocol", "what_is_wrong"]
