"""The HTTP of the offline search: `POST /search` as Tavily answers it, with the key when one was set."""

from __future__ import annotations

import hmac
from types import TracebackType
from typing import Self

import orjson
from aiohttp import web

from workers.tools.offline_search.index import Index

MAX_RESULTS = 20
_MAX_BODY_BYTES = 64 << 10


class OfflineSearch:
    """Serves an index; an async context manager, open from entering to leaving.

    Args:
        key: what a caller must say as a bearer token; empty = nothing.
        port: 0 = any free one.
    """

    def __init__(self, index: Index, *, key: str = "", host: str = "127.0.0.1", port: int = 0) -> None:
        self._index = index
        self._key = key
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/search", self._search)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """Where it serves."""
        if self._runner is None:
            raise RuntimeError("not open")
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _search(self, request: web.Request) -> web.Response:
        said = request.headers.get("Authorization", "")
        if self._key and not hmac.compare_digest(said.encode(), f"Bearer {self._key}".encode()):
            return _answer({"detail": {"error": "Unauthorized: missing or invalid API key."}}, 401)
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as broken:
            return _answer({"detail": {"error": f"no JSON: {broken}"}}, 400)
        query = body.get("query") if isinstance(body, dict) else None
        most = body.get("max_results", 5) if isinstance(body, dict) else None
        if not isinstance(query, str) or not query.strip():
            return _answer({"detail": {"error": "query: expected a text that is not empty"}}, 400)
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= MAX_RESULTS:
            return _answer({"detail": {"error": f"max_results: expected 0 to {MAX_RESULTS}"}}, 400)
        results = [
            {"title": document.title, "url": document.url, "content": passage, "score": round(score, 4)}
            for document, score, passage in self._index.search(query, most)
        ]
        return _answer({"query": query, "results": results, "answer": None, "images": [], "follow_up_questions": None})


def _answer(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
