"""Stage streams: their groups, and reading them without losing an entry.

Invariants:
  1. A group is made from the first entry (`0`), never from `$`: nothing written before it is missed. A group that is gone (flush,
     failover, a stream deleted by hand) is made again, with a pause, so that no loop spins.
  2. The read is never cancelled: a cancelled read leaves entries delivered to nobody. Blocks are short and a flag stops the loop.
  3. After a read that failed, entries may have been delivered without our knowing: the next read asks for this consumer's own pending
     entries first and takes those that it does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import redis
import structlog

from pipeline.errors import BrokerMisused
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import Claim, new_nonce
from pipeline.scripts.runner import ScriptRunner

log = structlog.get_logger(__name__)

BLOCK_S = 1.0
PENDING_PAGE = 128
HEAL_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
FAVOUR = 4
"""Of so many reads all but one begin at the first stream while that is deep, or while there is no room to look at all: jobs that have an
environment go first, three to one, and those that have none are not starved."""


@dataclass(frozen=True, slots=True)
class RawEntry:
    """An entry that has no header of ours."""

    stream: str
    entry: str
    fields: bytes
    """Names and values as they came, one a line."""


async def ensure_group(client: AsyncClient, keys: Keys, stage: Stage, stream: str) -> None:
    """Makes the stage's group on a stream, and the stream; does nothing when they are there.

    Raises:
        BrokerMisused: the key is of another type.
        BrokerUnreachable: no contact.
    """
    try:
        await ScriptRunner(client, keys)("ensure_group", keys.short(stream), stage.value, tries=1)
    except BrokerMisused as error:
        raise BrokerMisused(
            f"{stream} is not a stream: something else wrote that key; rename or delete it, or choose another "
            f"ROLLSTREAM_NAMESPACE ({error})"
        ) from error


class StreamReader:
    """Reads the streams of one stage for one consumer.

    Args:
        client: a reader client of its own (`redis_client.reader_client`).
        commands: a command client, to make groups.
        streams: full keys, in order of preference.
    """

    def __init__(self, client: AsyncClient, commands: AsyncClient, keys: Keys, stage: Stage, consumer: str, streams: Sequence[str]) -> None:
        self._client = client
        self._commands = commands
        self._keys = keys
        self._stage = stage
        self._consumer = consumer
        self.streams = tuple(streams)
        self._unsure = False
        self._turn = 0
        self._has_lane = ":@" in self.streams[0]
        self._lane_is_deep = False
        self._pause_s = HEAL_PAUSE_S
        self.heals = 0

    async def open(self) -> None:
        """Makes the groups that are missing."""
        for stream in self.streams:
            await ensure_group(self._commands, self._keys, self._stage, stream)

    def mistrust(self) -> None:
        """Something delivered may not have been taken care of: the next read looks for it."""
        self._unsure = True

    async def read(
        self, count: int, *, block: bool, held: Collection[tuple[str, str]], most_streams: int
    ) -> tuple[list[Claim], list[RawEntry]]:
        """New entries, at most `count` a stream.

        Args:
            count: most entries of each stream.
            block: wait up to `BLOCK_S` for the first one, in any stream.
            held: (stream, entry) that this consumer knows it holds, for the check after a failed read.
            most_streams: a read that does not wait looks into no more of them, since each may deliver.

        Raises:
            BrokerUnreachable: no contact; entries may have been delivered, the next call looks for them.
            BrokerMisused: a stream is of another type.
        """
        try:
            if self._unsure:
                reply = await self._own_pending(held)
                self._unsure = False
                if reply:
                    return self._parse(reply)
            # a failed read may have delivered: only a reply says that nothing is unsure
            self._unsure = True
            command: list[str | int] = ["XREADGROUP", "GROUP", self._stage.value, self._consumer, "COUNT", count]
            if block:
                command += ["BLOCK", int(BLOCK_S * 1000)]
            streams = self.streams if block else self._choose(most_streams)
            reply = await ask(self._client, *command, "STREAMS", *streams, *([">"] * len(streams)))
            self._unsure = False
            self._pause_s = HEAL_PAUSE_S
            self._look_at_lane(streams, reply or [], count)
            return self._parse(reply or [])
        except redis.ResponseError as error:
            if "NOGROUP" in str(error) or "UNBLOCKED" in str(error):
                self._unsure = False
                await self._heal()
                return [], []
            raise

    def _choose(self, most: int) -> Sequence[str]:
        """Streams of a read that does not wait: all of them when there is room for what each may deliver and the lane is not deep. Else the
        first ones three times of four, and the others in turn."""
        if most >= len(self.streams) and not self._lane_is_deep:
            return self.streams
        self._turn += 1
        first = 0 if self._turn % FAVOUR else 1 + self._turn // FAVOUR % (len(self.streams) - 1)
        return [*self.streams, *self.streams][first : first + (1 if self._lane_is_deep else most)]

    def _look_at_lane(self, streams: Sequence[str], reply: Any, count: int) -> None:
        """The lane is deep when it delivered all that was asked of it."""
        if self._has_lane and len(self.streams) > 1 and streams[0] == self.streams[0]:
            self._lane_is_deep = any(name.decode() == self.streams[0] and len(entries) >= count for name, entries in reply)

    async def _heal(self) -> None:
        self.heals += 1
        log.warning("group_gone", stage=self._stage.value, pause_s=self._pause_s)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)
        await self.open()

    async def _own_pending(self, held: Collection[tuple[str, str]]) -> list[list[Any]]:
        """This consumer's pending entries that it does not know of."""
        found: list[list[Any]] = []
        for stream in self.streams:
            start = "0"
            short = self._keys.short(stream)
            unknown: list[Any] = []
            while True:
                reply = await ask(
                    self._client, "XREADGROUP", "GROUP", self._stage.value, self._consumer, "COUNT", PENDING_PAGE, "STREAMS", stream, start
                )
                entries = reply[0][1] if reply else []
                unknown += [entry for entry in entries if (short, entry[0].decode()) not in held]
                if len(entries) < PENDING_PAGE:
                    break
                start = entries[-1][0].decode()
            if unknown:
                found.append([stream.encode(), unknown])
        return found

    def _parse(self, reply: Any) -> tuple[list[Claim], list[RawEntry]]:
        claims: list[Claim] = []
        raw: list[RawEntry] = []
        for name, entries in reply:
            stream = self._keys.short(name.decode())
            for entry, fields in entries:
                claim = parse_claim(stream, entry, fields or [])
                if isinstance(claim, Claim):
                    claims.append(claim)
                else:
                    raw.append(claim)
        return claims, raw


def parse_claim(stream: str, entry: bytes, fields: Sequence[bytes] | dict[bytes, bytes]) -> Claim | RawEntry:
    """The header of one entry, or the entry as it came when it has none."""
    flat = [part for pair in fields.items() for part in pair] if isinstance(fields, dict) else list(fields)
    try:
        header = dict(zip(flat[::2], flat[1::2], strict=True))
        return Claim(
            stream,
            entry.decode(),
            header[b"job"].decode(),
            header[b"run"].decode(),
            header.get(b"grp", b"").decode(),
            int(header.get(b"n") or 0),
            header.get(b"task", b"").decode(),
            new_nonce(),
        )
    except (KeyError, ValueError):
        return RawEntry(stream, entry.decode(), b"\n".join(flat))


async def last_entry(client: AsyncClient, stream: str) -> str:
    """Id of the newest entry of a stream, `0-0` when it has none."""
    reply = await ask(client, "XREVRANGE", stream, "+", "-", "COUNT", 1)
    return str(reply[0][0].decode()) if reply else "0-0"


__all__ = ["BLOCK_S", "RawEntry", "StreamReader", "ensure_group", "last_entry", "parse_claim"]
