"""One search at a service that speaks as Tavily does: `POST /search` with `query` and `max_results`, the key as a bearer token; hits come
as `results` with `title`, `url` and `content`.

Invariants
    - The key goes into that header of requests to the address of the settings, and nowhere else: no redirect is followed, and no
      message has it.
    - An answer is bounded while it is read (`MAX_ANSWER_BYTES`), each hit and their number afterwards.
    - A search ends within its time, tries and pauses included: with hits, with none, or with a `SearchError`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import orjson

from workers.tools.search.errors import SearchBusy, SearchError, SearchRefused, SearchUnavailable, SearchUnreadable
from workers.tools.search.settings import SearchSettings

MAX_ANSWER_BYTES = 2 << 20
MAX_QUERY_CHARS = 400
"""What Tavily takes."""
_TITLE_CHARS = 200
_SAID_CHARS = 200
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_BUSY = (429, 432, 433, 503)
"""Too many requests; Tavily's words for a plan or a budget that is used up; overloaded."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One hit."""

    title: str
    url: str
    content: str


class SearchClient:
    """Searches for all jobs of a process; an async context manager that owns the connections.

    Args:
        first_pause_s: before the second try; each further one is twice as long.
    """

    def __init__(self, settings: SearchSettings, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self.settings = settings
        self._first_pause_s = first_pause_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        key = self.settings.key_file.read_text(encoding="utf-8").strip() if self.settings.key_file else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=self.settings.timeout_s))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def search(self, query: str, *, max_results: int | None = None, timeout_s: float) -> tuple[Found, ...]:
        """The hits of a query, best first.

        Args:
            max_results: hits at most; never more than the settings say.
            timeout_s: for all tries and the pauses between them.

        Raises:
            SearchError: there was no answer in time, or another than hits.
        """
        wanted = min(max_results or self.settings.max_results, self.settings.max_results)
        body = orjson.dumps({"query": query[:MAX_QUERY_CHARS], "max_results": wanted, "search_depth": "basic"})
        ends = time.monotonic() + timeout_s
        pause_s = self._first_pause_s
        for tries_left in reversed(range(self.settings.tries)):
            try:
                async with asyncio.timeout(ends - time.monotonic()):
                    return self._hits(await self._ask(body), wanted)
            except TimeoutError as late:
                raise SearchUnavailable(f"the search service gave no answer within {timeout_s:g} s") from late
            except SearchError as error:
                asked = error.retry_after_s if isinstance(error, SearchBusy) and error.retry_after_s is not None else 0.0
                wait_s = max(asked, min(pause_s, _LONGEST_PAUSE_S))
                if not error.can_help_to_retry or not tries_left or time.monotonic() + wait_s >= ends:
                    raise
            await asyncio.sleep(wait_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    async def _ask(self, body: bytes) -> bytes:
        if self._session is None:
            raise RuntimeError("no connections: enter the client first")
        try:
            async with self._session.post(
                f"{self.settings.url}/search",
                data=body,
                headers={"Content-Type": "application/json"},
                proxy=self.settings.proxy or None,
                allow_redirects=False,
            ) as response:
                content = bytearray()
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > MAX_ANSWER_BYTES:
                        raise SearchUnreadable("the search service gave an answer that is too long")
                if response.status != 200:
                    raise _refusal(response.status, bytes(content), response.headers.get("Retry-After", ""))
                return bytes(content)
        except TimeoutError as late:
            raise SearchUnavailable(f"the search service gave no answer within {self.settings.timeout_s:g} s") from late
        except (aiohttp.ClientError, OSError) as broken:
            raise SearchUnavailable("the search service cannot be reached") from broken

    def _hits(self, content: bytes, wanted: int) -> tuple[Found, ...]:
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError as broken:
            raise SearchUnreadable("the search service gave an answer that is no JSON") from broken
        results = found.get("results") if isinstance(found, dict) else None
        if not isinstance(results, list):
            raise SearchUnreadable("the search service gave an answer without results")
        hits = [
            Found(
                title=_line(result.get("title"))[:_TITLE_CHARS],
                url=_line(result.get("url"))[:_TITLE_CHARS],
                content=_text(result.get("content"))[: self.settings.max_hit_chars],
            )
            for result in results
            if isinstance(result, Mapping)
        ]
        return tuple(hits[:wanted])


def _refusal(status: int, content: bytes, retry_after: str) -> SearchError:
    if status in _BUSY:
        return SearchBusy(status, float(retry_after) if retry_after.strip().isdecimal() else None)
    if status >= 500 or status == 408:
        return SearchUnavailable(f"the search service broke (status {status})")
    said = _line(content[:2_000].decode("utf-8", "replace"))
    # a service may say the key back: of a refused key nothing is repeated
    return SearchRefused(status, "" if status in (401, 403) else said[:_SAID_CHARS])


def _line(value: object) -> str:
    return " ".join(_text(value).split())


def _text(value: object) -> str:
    return _CONTROLS.sub(" ", value).strip() if isinstance(value, str) else ""
