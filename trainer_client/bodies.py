"""Fetches bodies when they are asked for, many in few calls, none of which is large enough to hold up the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import redis

from pipeline.redis_client import AsyncClient, ask, broker_error, cancel_is_kept
from trainer_client.contact import Contact
from trainer_client.lifetime import Lifetime

MAX_CALL_BYTES = 8 * 1024 * 1024
"""Most bytes of one reply (a larger body comes alone): well inside the time limit of a command on a slow network."""
MAX_CALL_KEYS = 256


class BodyStore:
    """Reads bodies of one shard."""

    def __init__(self, client: AsyncClient, contact: Contact, life: Lifetime) -> None:
        self._client = client
        self._contact = contact
        self._life = life

    async def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes under each key, in order; None where there are none."""
        found: list[bytes | None] = []
        for at in range(0, len(keys), MAX_CALL_KEYS):
            part = keys[at : at + MAX_CALL_KEYS]
            async with self._life.watched():
                sizes = await self._contact.reach(lambda part=part: self._sizes(part))  # type: ignore[misc]  # bound now, not when called
            for batch in _batches(part, sizes):
                async with self._life.watched():
                    found += await self._contact.reach(lambda batch=batch: ask(self._client, "MGET", *batch))  # type: ignore[misc]
        return found

    async def _sizes(self, keys: Sequence[str]) -> list[int]:
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.strlen(key)
        try:
            with cancel_is_kept():
                answers = await pipe.execute(raise_on_error=False)
        except (redis.RedisError, OSError) as error:
            raise broker_error(error) from error
        # an error is a key of another type; MGET answers None for it
        return [answer if isinstance(answer, int) else 0 for answer in answers]


def _batches(keys: Sequence[str], sizes: Sequence[int]) -> Iterator[list[str]]:
    """Runs of keys whose bytes stay within one call."""
    batch: list[str] = []
    n_bytes = 0
    for key, size in zip(keys, sizes, strict=True):
        if batch and n_bytes + size > MAX_CALL_BYTES:
            yield batch
            batch, n_bytes = [], 0
        batch.append(key)
        n_bytes += size
    if batch:
        yield batch
