"""What a gateway's next process must know and no record of the run says: whether the door is open, and that the prompts have ended.

It is one key with an expiry, words in plain text. Clients said these things once and do not learn of a restart; and a new client of the run
begins without knowing that prompts had ended, since it may feed others.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask

Word = Literal["open", "ended"]


class Memory:
    """Words of one run's gateway.

    Args:
        ttl_s: how long they are remembered after the last renewal.
    """

    def __init__(self, client: AsyncClient, keys: Keys, run: str, *, ttl_s: float) -> None:
        self._client = client
        self._key = keys.gateway(run)
        self._ttl_ms = int(ttl_s * 1000)
        self._words: set[str] = set()
        self._noting = asyncio.Lock()

    def __contains__(self, word: Word) -> bool:
        return word in self._words

    async def load(self) -> None:
        """Reads what an earlier process left."""
        found = await ask(self._client, "GET", self._key)
        self._words = set(found.decode().split()) if found else set()

    async def note(self, word: Word, *, holds: bool) -> None:
        """Something became true, or is not true any more."""
        async with self._noting:
            changed = {*self._words, word} if holds else self._words - {word}
            if changed:
                await ask(self._client, "SET", self._key, " ".join(sorted(changed)), "PX", self._ttl_ms)
            elif self._words:
                await ask(self._client, "DEL", self._key)
            self._words = changed

    async def renew(self) -> None:
        """Makes it remembered for as long again."""
        if self._words:
            await ask(self._client, "PEXPIRE", self._key, self._ttl_ms)


__all__ = ["Memory"]
