"""Follows a run's results stream and puts what it says into the inbox.

Invariants:
  1. The stream is read from its beginning: it holds all that is not acked, and nothing else.
  2. After any failed read it is read from the beginning again. A server that lost its last second, or another one that took over, may have
     given new entries ids that lie before our position; the inbox knows what it has. What it has and a whole reading does not meet
     was lost.
  3. The read is never cancelled while it waits at the server: blocks are short, and a flag ends the loop.
"""

from __future__ import annotations

import asyncio

from pipeline.errors import BrokerUnreachable
from pipeline.redis_client import AsyncClient, ask
from trainer_client.contact import FIRST_PAUSE_S, Contact
from trainer_client.inbox import Inbox
from trainer_client.logs import Log
from trainer_client.records import Unreadable, read_record

log = Log(__name__)

BLOCK_S = 0.25
"""Also how long a client takes to close."""
COUNT = 512
START = "0-0"


class ResultsReader:
    """Reads one stream.

    Args:
        client: a reader client of its own (`redis_client.reader_client`).
        stream: full key.
    """

    def __init__(self, client: AsyncClient, stream: str, inbox: Inbox, contact: Contact) -> None:
        self._client = client
        self._stream = stream
        self._inbox = inbox
        self._contact = contact
        self._position = START
        self._unreadable: set[str] = set()
        self._met: set[str] | None = None
        """Entries of a reading from the beginning that is not at its end yet."""

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop`.

        Raises:
            BrokerMisused: the key is of another type, or we may not read it.
        """
        pause_s = FIRST_PAUSE_S
        while not stop.is_set():
            try:
                reply = await ask(
                    self._client, "XREAD", "COUNT", COUNT, "BLOCK", int(BLOCK_S * 1000), "STREAMS", self._stream, self._position
                )
            except BrokerUnreachable as error:
                self._contact.lost(error)
                self._position, self._met = START, set()
                self._inbox.distrust()
                pause_s = await self._contact.pause(pause_s, stop)
                continue
            pause_s = FIRST_PAUSE_S
            self._contact.found()
            entries = reply[0][1] if reply else ()
            for entry, flat in entries:
                self._position = entry.decode()
                self._take(self._position, flat)
            if self._met is not None:
                self._met.update(entry.decode() for entry, _ in entries)
                if len(entries) < COUNT:
                    self._inbox.forget_lost(self._met)
                    self._met = None
            await asyncio.sleep(0)

    def _take(self, entry: str, flat: list[bytes]) -> None:
        try:
            record = read_record(entry, flat)
        except Unreadable as error:
            if entry not in self._unreadable:
                self._unreadable.add(entry)
                log.warning("result_unreadable", stream=self._stream, entry=entry, why=str(error))
            return
        self._inbox.take(record)
