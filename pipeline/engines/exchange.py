"""HTTP with an inference server: one exchange gives the JSON of a 200, or raises one of our errors.

Traps this file knows:
  * Servers close idle connections after 5 s; ours go after 4. One that still closes before any answer raises `Retryable("closed")`,
    so that the caller can try once more; what may be said twice (`command`) is, here.
  * Proxies from the environment have no business between a worker and its server: they are not used. Nor are redirects followed: what was
    sent (prompts, the key) is for this server.
  * An answer is believed to be short until it is read: it is bounded while it comes, and never compressed, since a megabyte of gzip can be
    a gigabyte of memory.
  * A restart breaks every connection, and the next request goes to whoever is there then. Who must not speak with another start of the
    server than the one that just answered has all said over one connection, and makes no second one (`only_one`).
  * Which routes are there depends on version and flags. One that is not is remembered for a while (`get_if_there`): who looks each second
    asks for it now and then only.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import orjson

from pipeline.engines.answers import Received, TooLong
from pipeline.engines.connections import BrokenOff, Closed, Connections, Unreachable
from pipeline.engines.errors import InvalidResponse, ModelError, Refused, Retryable, RetryReason

KEEPALIVE_S = 4.0
"""Below the 5.0 s after which vLLM closes an idle connection."""
CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 30.0
"""For everything but generation and a pause that waits for calls in flight."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""More than a million tokens with their logprobs, in the longest of the shapes."""
MAX_LOOK_BYTES = 4 * 1024 * 1024
"""Of an answer to a GET, which is about the server. Pages of metrics have some hundred kilobytes; reading 50 MB takes seconds, in which
a worker renews no lease."""
SAME = secrets.token_hex(16)
"""Stands for an echo that was compared already; of this process alone, so that no answer can say it."""
MOST_STANDING = 4
"""Connections that a look leaves open. When the server restarts all break at once, and each may be tried before a new one is made."""
LONGEST_RETRY_AFTER_S = 600.0
"""A server that names a longer pause is asked again all the same."""
ABSENT = (403, 404, 405)
"""How a route answers that is switched off or not there yet."""
ABSENT_FOR_S = 30.0
"""Asked for again after that: a server may have restarted with other flags between two of our connections."""


class Exchange:
    """Connections to one server.

    Args:
        url: `http://host:port` or `unix:/path/to.sock`.
        api_key: sent as a bearer token when not empty.
        max_answer_bytes: an answer above is none.
        only_one: everything goes over one connection, one request after the other. When that is closed every request raises
            `Retryable("closed")`, and none of them was sent.
    """

    def __init__(self, url: str, api_key: str = "", *, max_answer_bytes: int = MAX_ANSWER_BYTES, only_one: bool = False) -> None:
        self._only_one = only_one
        self._max_answer_bytes = max_answer_bytes
        self.url = url.rstrip("/")
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._connections: Connections | None = None
        self._no_address = ""
        """What is wrong with the address; empty = nothing."""
        self.breaks = 0
        """Connections that broke or could not be made. When it has grown, another server may be behind the address."""
        self._absent: dict[str, tuple[int, float]] = {}
        """Routes that were not there: `breaks` at that time, and until when it is believed, by the monotonic clock."""

    def open(self) -> None:
        """Make the connection pool; on the loop that will use it."""
        try:
            self._connections = Connections(
                self.url, self._headers, keepalive_s=KEEPALIVE_S, connect_timeout_s=CONNECT_TIMEOUT_S, only_one=self._only_one
            )
        except ValueError as error:  # found at the first exchange, as any server that cannot be reached
            self._no_address = str(error)

    @property
    def connections(self) -> int:
        """Connections made so far: behind a new one the server may have been started again without one that broke."""
        return 0 if self._connections is None else self._connections.made

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.close()

    async def get(self, path: str, *, timeout_s: float = CONTROL_TIMEOUT_S, parse: bool = True) -> object:
        """JSON of `path`; with `parse=False` text is taken as well."""
        return await self._exchange("GET", path, None, {}, {}, timeout_s, parse)

    async def get_if_there(self, path: str, *, timeout_s: float = CONTROL_TIMEOUT_S, parse: bool = True) -> object:
        """JSON of `path` (or its text, with `parse=False`), None where the server has no such route."""
        breaks, until_s = self._absent.get(path, (-1, 0.0))
        if breaks == self.breaks and time.monotonic() < until_s:
            return None
        try:
            return await self.get(path, timeout_s=timeout_s, parse=parse)
        except Refused as error:
            if error.status not in ABSENT:
                raise
        self._absent[path] = (self.breaks, time.monotonic() + ABSENT_FOR_S)
        return None

    def ask_routes_anew(self) -> None:
        """Forget which routes were not there: another server may be."""
        self._absent.clear()

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = CONTROL_TIMEOUT_S,
        parse: bool = True,
        echo: tuple[str, Sequence[int]] | None = None,
    ) -> object:
        """JSON that `path` answers to `body`; with `parse=False` text is taken as well. `timeout_s=None` waits as long as it takes.

        Args:
            echo: a name and the numbers that the answer should repeat under it. Where it does, number for number, `SAME` stands in their
                place: a long list is compared as it came, and not read.
        """
        return await self._exchange("POST", path, body, query or {}, headers or {}, timeout_s, parse, echo)

    async def command(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float | None = CONTROL_TIMEOUT_S,
    ) -> object:
        """A `post` that may be carried out twice, of any answer: sent again when its connection closed before one."""
        for _ in range(MOST_STANDING):
            try:
                return await self.post(path, body, query=query, timeout_s=timeout_s, parse=False)
            except Retryable as error:
                if error.reason != "closed":
                    raise
        return await self.post(path, body, query=query, timeout_s=timeout_s, parse=False)

    async def takes(self, path: str, body: Mapping[str, Any]) -> bool:
        """Whether the server has the route, found by a command."""
        try:
            await self.command(path, body)
        except Refused as error:
            if error.status in ABSENT:
                return False
            raise
        return True

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        timeout_s: float | None,
        parse: bool,
        echo: tuple[str, Sequence[int]] | None = None,
    ) -> object:
        """One HTTP exchange: the JSON of a 200 (or its text), else one of our errors."""
        numbers = b"" if echo is None else orjson.dumps(echo[1] if isinstance(echo[1], list) else [*echo[1]])
        data = None
        if body is not None and echo is not None:  # the numbers are written once, for the body and to be compared
            body = {name: orjson.Fragment(numbers) if value is echo[1] else value for name, value in body.items()}
        if body is not None:
            data = orjson.dumps(body)
            headers = {**headers, "content-type": "application/json"}
        try:
            async with asyncio.timeout(timeout_s):
                received = await self._received(method, path, query, headers, data)
        except TimeoutError as error:
            raise Retryable("timeout", self.url, f"{method} {path}: no answer within {timeout_s} s") from error
        except Unreachable as error:
            self.breaks += 1
            raise Retryable("unreachable", self.url, f"{method} {path}: {error}") from error
        except Closed as error:
            self.breaks += 1
            raise Retryable("closed", self.url, f"{method} {path}: connection closed before any answer: {error}") from error
        except BrokenOff as error:
            raise Retryable("engine_failed", self.url, f"{method} {path}: answer broken off: {error}") from error
        except TooLong as error:
            raise InvalidResponse("too_long", f"{method} {path}: {error}", server=self.url) from error
        content = received.content
        if received.status != 200:
            raise _error_of(self.url, received.status, content, received.headers.get("retry-after"))
        if not parse:
            return _json_or_text(content)
        try:
            return orjson.loads(content if echo is None else _without_echo(content, echo[0], numbers))
        except orjson.JSONDecodeError as error:
            raise InvalidResponse("json", f"{method} {path}: {error}", server=self.url) from error

    async def _received(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], data: bytes | None) -> Received:
        """One answer; a look whose connection closed is made again, on another."""
        if self._no_address:
            raise Unreachable(self._no_address)
        if self._connections is None:
            raise RuntimeError("no connections: open them first, on the loop that uses them")
        if method != "GET":
            return await self._connections.exchange(method, path, query, headers, data, self._max_answer_bytes)
        most_bytes = min(self._max_answer_bytes, MAX_LOOK_BYTES)
        try:
            return await self._connections.exchange(method, path, query, headers, data, most_bytes)
        except Closed:
            return await self._connections.exchange(method, path, query, headers, data, most_bytes)


def _error_of(server: str, status: int, content: bytes, retry_after: str | None) -> ModelError:
    detail = content[:500].decode("utf-8", "replace")
    after_s = min(LONGEST_RETRY_AFTER_S, float(retry_after)) if retry_after and retry_after.strip().isdecimal() else None
    reason: RetryReason | None = None
    if status == 503:
        reason = "engine_paused" if b"engine_paused" in content else "busy"
    elif status == 429:
        reason = "busy"
    elif status == 408:
        reason = "timeout"
    elif status >= 500:
        reason = "engine_failed"
    if reason is None:
        return Refused(server, status, detail)
    return Retryable(reason, server, detail, status=status, retry_after_s=after_s)


def _without_echo(content: bytes, name: str, sent: bytes) -> bytes:
    """An answer with `SAME` in place of an exact echo of a list that was `sent` so. No text inside a JSON string reads like one: quotes
    are escaped there."""
    key = orjson.dumps(name) + b":"
    at = content.find(key) + len(key)
    if at < len(key) or not content.startswith(sent, at):
        return content
    return b"".join((memoryview(content)[:at], orjson.dumps(SAME), memoryview(content)[at + len(sent) :]))


def _json_or_text(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode("utf-8", "replace")


async def together(*questions: Awaitable[object]) -> list[Any]:
    """Answers to questions that are asked at once, in order; Any since each has its own form. An error goes up when all are through."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers
