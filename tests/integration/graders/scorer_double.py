"""A reward service on loopback that answers as it is told: a real HTTP server, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

Reply = tuple[int, bytes] | None
"""Status and body; None = it never answers."""


def score(value: object, **more: object) -> Reply:
    """A score as a scorer writes it."""
    return 200, orjson.dumps({"score": value, **more})


def said(text: str, end: str = "stop") -> Reply:
    """What a judge writes."""
    return 200, orjson.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": end}]})


class ScorerDouble:
    """Serves; an async context manager.

    Args:
        replies: to one request after another, the last one for ever; or what makes a reply of a request's body.
    """

    def __init__(self, *replies: Reply | Callable[[Any], Reply]) -> None:
        self._replies: Iterator[Reply | Callable[[Any], Reply]] = iter(replies[:-1])
        self._last = replies[-1]
        self.bodies: list[Any] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.gate = asyncio.Event()
        """No reply leaves before it is set."""
        self.gate.set()
        self._never = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._runner is not None
        self._never.set()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _answer(self, request: web.Request) -> web.Response:
        self.bodies.append(orjson.loads(await request.read()))
        self.keys.append(request.headers.get("Authorization", ""))
        self.paths.append(request.path)
        await self.gate.wait()
        reply = next(self._replies, self._last)
        if callable(reply):
            reply = reply(self.bodies[-1])
        if reply is None:
            await self._never.wait()
            return web.Response(status=503)
        status, body = reply
        return web.Response(status=status, body=body, content_type="application/json")
