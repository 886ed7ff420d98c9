"""Fetches bodies when they are asked for, many in few calls, none of which is large enough to hold up the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import redis

from pipeline.redis_client import AsyncClient, ask, broker_error, cancel_is_kept
from trainer_client.calls import Calls

if TYPE_CHECKING:
    from pipeline.blobs import BlobStore

MAX_CALL_BYTES = 8 * 1024 * 1024
"""Most bytes of one reply (a larger body comes alone): well inside the time limit of a command on a slow network."""
MAX_CALL_KEYS = 256


class BodyStore:
    """Reads bodies of one shard.

    Args:
        blobs: where arrays beside them lie; None = no store is set.
    """

    def __init__(self, client: AsyncClient, calls: Calls, blobs: BlobStore | None = None) -> None:
        self._client = client
        self._calls = calls
        self.blobs = blobs

    async def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes under each key, in order; None where there are none."""
        found: list[bytes | None] = []
        for at in range(0, len(keys), MAX_CALL_KEYS):
            part = keys[at : at + MAX_CALL_KEYS]
            sizes = await self._calls.make(self._sizes, part)
            for batch in _batches(part, sizes):
                found += await self._calls.make(ask, self._client, "MGET", *batch)
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
