"""Follows the results stream for readers of `/events`: each has a position of its own, and one blocked read wakes all.

Invariants
    - What a reader is given are the entries after its position, in order, each once. It misses those alone that were let go before it
      came to them.
    - A reader that stands still holds a position and what its connection's buffers hold, nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict

import orjson
import structlog

from ops.gateway.refusals import Refusal
from pipeline.errors import BrokerError
from pipeline.redis_client import AsyncClient, ask
from pipeline.streams import last_entry
from trainer_client.records import Unreadable, read_record

log = structlog.get_logger(__name__)

ENTRY = re.compile(r"([0-9]{1,20})-([0-9]{1,20})\Z")
MOST_OF_AN_ID = 2**64 - 1
"""Of each half: Redis counts in 64 bits, and nothing comes behind the last of them."""
FROM_THE_START = "0-0"
BLOCK_S = 0.25
"""A read is not broken off at the server: also how long a gateway takes to end."""
COUNT = 128
PAUSE_S = 0.5
KINDS = ("job", "group", "step", "awaiting", "held", "note")
Fields = Sequence[bytes]


class Events:
    """The results stream of one run.

    Args:
        client: for looks.
        reader: a client of its own, for the read that blocks.
        most: readers at once.
    """

    def __init__(self, client: AsyncClient, reader: AsyncClient, stream: str, *, most: int) -> None:
        self._client = client
        self._reader = reader
        self._stream = stream
        self._most = most
        self._arrived = asyncio.Event()
        self.readers = 0

    async def follow(self, stop: asyncio.Event) -> None:
        """Wakes readers when something arrived, until `stop`."""
        position = "$"
        while not stop.is_set():
            try:
                if position == "$":
                    position = await last_entry(self._client, self._stream)
                reply = await ask(self._reader, "XREAD", "COUNT", COUNT, "BLOCK", int(BLOCK_S * 1000), "STREAMS", self._stream, position)
            except BrokerError as error:
                log.warning("events_not_read", error=str(error))
                position = "$"
                self._wake()  # what came meanwhile is found by position
                await asyncio.sleep(PAUSE_S)
                continue
            entries = reply[0][1] if reply else ()
            if entries:
                position = entries[-1][0].decode()
                self._wake()

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    def arrival(self) -> asyncio.Event:
        """Set when something arrives after this call."""
        return self._arrived

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """One more reader, while the block runs.

        Raises:
            Refusal: there are as many as may be.
        """
        if self.readers >= self._most:
            raise Refusal(503, "too_many_streams", f"{self._most} clients read events, the bound: close some", retry_after_s=5.0)
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    async def newest(self) -> str:
        """The position behind all that is there."""
        return await last_entry(self._client, self._stream)

    async def after(self, position: str) -> list[tuple[str, Fields]]:
        """Entries behind a position, at most `COUNT`."""
        reply = await ask(self._client, "XRANGE", self._stream, f"({position}", "+", "COUNT", COUNT)
        return [(entry.decode(), _flat(fields)) for entry, fields in reply]


def _flat(fields: object) -> Fields:
    if isinstance(fields, dict):
        return [part for pair in fields.items() for part in pair]
    assert isinstance(fields, list)
    return fields


def as_event(entry: str, fields: Fields, kinds: Sequence[str]) -> bytes | None:
    """An entry as a server-sent event; None when it is of another kind, or no record of ours."""
    try:
        record = read_record(entry, fields)
    except Unreadable as error:
        log.warning("event_unreadable", entry=entry, why=str(error))
        return None
    kind = fields[fields.index(b"kind") + 1].decode()
    if kind not in kinds:
        return None
    data = orjson.dumps(asdict(record), option=orjson.OPT_NON_STR_KEYS)
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (entry.encode(), kind.encode(), data)


def position_of(text: str) -> str:
    """A position that a client names.

    Raises:
        Refusal: 422, it is none.
    """
    if text in ("0", FROM_THE_START):
        return FROM_THE_START
    found = ENTRY.match(text)
    if found is None or not all(int(half) < MOST_OF_AN_ID for half in found.groups()):
        raise Refusal(
            422,
            "invalid",
            f"expected the id of an event, such as 1795977000000-0, or 0 for all that are kept, got {text[:40]!r}",
            field="Last-Event-ID",
        )
    return text


def kinds_of(text: str) -> tuple[str, ...]:
    """Kinds of events that a client names, separated by commas; all when it names none.

    Raises:
        Refusal: 422, one of them is none.
    """
    kinds = tuple(word for word in text.split(",") if word)
    for kind in kinds:
        if kind not in KINDS:
            raise Refusal(422, "invalid", f"expected some of {', '.join(KINDS)}, got {kind[:40]!r}", field="kinds")
    return kinds or KINDS


__all__ = ["BLOCK_S", "FROM_THE_START", "KINDS", "Events", "as_event", "kinds_of", "position_of"]
