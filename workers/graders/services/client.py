"""One question to a service of several servers: whoever is least busy is asked, and another one when that fails.

Invariants
    - The key goes into the `Authorization` header of requests to the addresses of the settings, and nowhere else: no redirect is
      followed, and no message has it.
    - An answer is bounded while it is read (`MAX_REPLY_BYTES`), and counts only when `read` takes it: one that is no score is a failure of
      the server like any other.
    - It ends with an answer or with a `GraderError` that says what each try met. Cancelling it closes the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import orjson

from workers.graders.errors import GraderError
from workers.graders.services.servers import Server, Servers
from workers.graders.services.settings import ScorerSettings

MAX_REPLY_BYTES = 4 << 20
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_SHOWN_CHARS = 160

T = TypeVar("T")


class Unusable(Exception):
    """What a server said is no answer to what it was asked.

    Args:
        why: for people.
        wants_s: the pause that it asked for.
    """

    def __init__(self, why: str, *, wants_s: float = 0.0) -> None:
        super().__init__(why)
        self.wants_s = wants_s


class ServiceClient:
    """Asks a service for all jobs of a process; an async context manager that owns the connections.

    Args:
        name: as jobs call it, for errors.
        first_pause_s: when every server failed once, before they are asked again; each further pause is twice as long.
    """

    def __init__(self, name: str, settings: ScorerSettings, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self.name, self.settings = name, settings
        self.servers = Servers(settings.urls, rest_s=settings.rest_s, clock=time.monotonic)
        self._places = {url: asyncio.Semaphore(settings.at_once) for url in settings.urls}
        self._first_pause_s = first_pause_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        file = self.settings.key_file
        try:
            key = file.read_text(encoding="utf-8").strip() if file else ""
        except (OSError, UnicodeDecodeError) as broken:
            raise GraderError(f"its key file {file} cannot be read: {type(broken).__name__}", grader=self.name) from broken
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connector = aiohttp.TCPConnector(limit=0)  # `at_once` bounds them
        timeout = aiohttp.ClientTimeout(total=self.settings.timeout_s)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def ask(self, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:  # bodies and replies are JSON
        """What the service says.

        Args:
            read: takes the answer out of the JSON of a reply, or raises `Unusable`.

        Raises:
            GraderError: no try gave an answer.
        """
        content = orjson.dumps(body)
        met: list[str] = []
        tried: set[str] = set()
        pause_s = self._first_pause_s
        for tries_left in reversed(range(self.settings.tries)):
            server = self.servers.next(tried)
            try:
                async with self._places[server.url]:
                    found = read(await self._post(server, content))
            except Unusable as broken:
                self.servers.failed(server, wants_s=broken.wants_s)
                met.append(f"{server.url}: {broken}")
                tried.add(server.url)
            else:
                self.servers.answered(server)
                return found
            finally:
                self.servers.left(server)
            if tries_left and len(tried) == len(self.servers.all):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                tried.clear()
        raise GraderError(f"no score after {len(met)} tries: {'; '.join(met[-4:])}", grader=self.name)

    async def _post(self, server: Server, content: bytes) -> Any:  # JSON
        if self._session is None:
            raise RuntimeError("no connections: enter the client first")
        try:
            async with self._session.post(
                f"{server.url}{self.settings.address_path}",
                data=content,
                headers={"Content-Type": "application/json"},
                proxy=self.settings.proxy or None,
                allow_redirects=False,
            ) as response:
                reply = bytearray()
                async for piece in response.content.iter_any():
                    reply += piece
                    if len(reply) > MAX_REPLY_BYTES:
                        raise Unusable(f"a reply of more than {MAX_REPLY_BYTES >> 20} MiB")
                status, pause = response.status, response.headers.get("Retry-After", "")
        except TimeoutError:
            raise Unusable(f"no reply within {self.settings.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as broken:
            raise Unusable(f"it cannot be reached: {type(broken).__name__}") from broken
        if status != 200:
            # a server may say a refused key back: of those replies nothing is repeated
            said = "" if status in (401, 403) else " ".join(bytes(reply[:2_000]).decode("utf-8", "replace").split())[:_SHOWN_CHARS]
            wants_s = float(pause) if pause.strip().isdecimal() else 0.0
            raise Unusable(f"status {status}{f': {said}' if said else ''}", wants_s=wants_s)
        try:
            return orjson.loads(reply)
        except orjson.JSONDecodeError:
            return _not_json(bytes(reply))


def _not_json(reply: bytes) -> Any:  # never returns
    """Python's own servers write NaN, which no JSON has: it is named as what it is."""
    text = reply[:2_000].decode("utf-8", "replace")
    raise Unusable("a score that is NaN or infinite" if "NaN" in text or "Infinity" in text else f"no JSON: {text[:_SHOWN_CHARS]!r}")
