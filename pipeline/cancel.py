"""Follows the cancel stream and tells the jobs of this process.

The durable mark is in the job (`cx`); this stream only makes it fast. A position is taken before the first claim, so no message that
concerns a job of ours can lie before it. When something may have been missed (an error, a trimmed stretch) every lease is renewed at
once, and the renewal brings the marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.streams import BLOCK_S, last_entry

log = structlog.get_logger(__name__)

READ_COUNT = 256
ERROR_PAUSE_S = 0.2
MAX_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class CancelMessage:
    """One target object of a cancel."""

    kind: str
    """`job`, `group` or `run`."""
    reason: str
    ids: frozenset[str]
    incarnation: int = 0
    """Of a run: jobs of a later one are not meant. 0 = no bound."""

    def means(self, job: str, group: str, run: str, incarnation: int) -> bool:
        """Whether a job is among its targets."""
        target = {"job": job, "group": group, "run": run}.get(self.kind, "")
        return target in self.ids and (not self.incarnation or incarnation <= self.incarnation)


class CancelTail:
    """Reads `s:cancel` of one shard.

    Args:
        client: a reader client of its own.
        on_cancel: called for each message.
        on_gap: called when messages may have been missed.
    """

    def __init__(self, client: AsyncClient, keys: Keys, on_cancel: Callable[[CancelMessage], None], on_gap: Callable[[], None]) -> None:
        self._client = client
        self._stream = keys.cancel
        self._on_cancel = on_cancel
        self._on_gap = on_gap
        self._position = "0-0"

    async def open(self) -> None:
        """Takes the position; call it before the first claim."""
        self._position = await last_entry(self._client, self._stream)

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set."""
        pause_s = ERROR_PAUSE_S
        while not stop.is_set():
            try:
                reply = await ask(
                    self._client, "XREAD", "COUNT", READ_COUNT, "BLOCK", int(BLOCK_S * 1000), "STREAMS", self._stream, self._position
                )
            except (BrokerError, redis.RedisError) as error:
                log.warning("cancel_read_failed", error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)
                self._on_gap()
                continue
            pause_s = ERROR_PAUSE_S
            entries = reply[0][1] if reply else []
            for entry, fields in entries:
                self._position = entry.decode()
                message = _parse(fields or [])
                if message is None:
                    log.warning("cancel_unreadable", entry=self._position)
                else:
                    self._on_cancel(message)
            if len(entries) == READ_COUNT:
                self._on_gap()


def _parse(fields: Sequence[bytes]) -> CancelMessage | None:
    try:
        header = {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
        return CancelMessage(header["kind"], header["why"], frozenset(header["ids"].split()), int(header.get("inc") or 0))
    except (KeyError, ValueError):
        return None
