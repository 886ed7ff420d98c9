"""Which exporter reads the queue: the one that has a key in Redis.

    free ──SET NX PX──▶ mine ──GET, PEXPIRE──▶ mine ──silent for LEASE_S──▶ free

Invariants (docs/adr/0032-metrics.md):
  1. At most one exporter has the key: all that can be had by commands that a user for looking may use. One that was silent for longer than
     the lease may read until its next round; then it finds another's name there.
  2. Where Redis takes no writes nobody can take the key, and just then somebody has to tell: who finds it free reads.
  3. Redis away: nobody reads, since there is nothing to be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field

import redis
import structlog

from ops.status.reach import PATIENCE_S, reached, settings_of_server, while_it_answers
from ops.status.trouble import Unreached
from pipeline.errors import BrokerError, BrokerMisused
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings

log = structlog.get_logger(__name__)

LEASE_S = 15.0
ROUND_S = 5.0


@dataclass(slots=True)
class Leadership:
    """The part that one exporter has in it.

    Args:
        url: where it answers, for who looks at the key.
        patience_s: what a connection and a reply each may take.
    """

    settings: QueueSettings
    url: str
    lease_s: float = LEASE_S
    patience_s: float = PATIENCE_S
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    leads: bool = False
    is_up: bool = False
    """Redis answered the last round."""
    leader_url: str = ""
    """Where another reads; empty = none was found."""
    takes_writes: bool | None = None
    """What the last write of this exporter met; None = it wrote none."""
    _has_told: bool = False

    async def run(self, *, every_s: float = ROUND_S) -> None:
        """Keeps it, or waits for it, until it is cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """One round."""
        before = self.leads
        try:
            server = settings_of_server(self.settings)
            async with reached(server, patience_s=self.patience_s) as client:
                self.leads = await while_it_answers(client, lambda: self._round(client), server, patience_s=self.patience_s)
                self.is_up = True
        except (Unreached, BrokerError, redis.RedisError, OSError):
            self.leads, self.is_up, self.takes_writes = False, False, None
        if self.leads is not before:
            log.info("exporter_leads" if self.leads else "exporter_waits", url=self.url)

    async def leave(self) -> None:
        """Gives the key up, so that another need not wait for it."""
        with contextlib.suppress(Unreached, BrokerError, redis.RedisError, OSError):
            async with reached(settings_of_server(self.settings), patience_s=self.patience_s) as client:
                if (await self._holder(client))[0] == self.boot:
                    await ask(client, "PEXPIRE", self._key, 0)
        self.leads = False

    async def _round(self, client: AsyncClient) -> bool:
        holder, url = await self._holder(client)
        self.leader_url = url if holder != self.boot else ""
        if holder not in ("", self.boot):
            self.takes_writes = None
            return False
        lease_ms = int(self.lease_s * 1000)
        try:
            if holder:
                await ask(client, "PEXPIRE", self._key, lease_ms)
                self.takes_writes = True
                return True
            is_mine = await ask(client, "SET", self._key, f"{self.boot} {self.url}", "NX", "PX", lease_ms) is not None
            self.takes_writes = True
            return is_mine
        except (BrokerError, redis.RedisError) as error:
            if not isinstance(error.__cause__ or error, redis.ResponseError):
                raise  # the connection went: nothing is known
            # full memory refuses the key and lets jobs end; a user without the right says nothing about the server
            self.takes_writes = True if _is_full(error) else None if isinstance(error, BrokerMisused) else False
            if not self._has_told:
                self._has_told = True
                log.warning("exporter_key_refused", key=self._key, error=str(error), what="it reads all the same; a second one would, too")
            return True

    async def _holder(self, client: AsyncClient) -> tuple[str, str]:
        """Its boot, and where it answers; both empty when nobody has the key."""
        found = await ask(client, "GET", self._key)
        boot, _, url = (found or b"").decode("utf-8", "replace").partition(" ")
        return boot, url

    @property
    def _key(self) -> str:
        return Keys.of_shard(self.settings.namespace, 0).exporter


def _is_full(error: Exception) -> bool:
    return isinstance(error.__cause__ or error, redis.exceptions.OutOfMemoryError)
