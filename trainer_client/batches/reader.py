"""Reads the trajectories that a manifest names, in processes that hold no run.

A run has one live client. The other ranks of a trainer need none: they take no incarnation, fence nobody and write nothing, so that any
number of them may come and go, also while the holder connects anew. What they read stands until the holder acks the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Unpack

from pipeline.blobs import BlobSettings, open_store
from pipeline.redis_client import ask, command_client
from pipeline.requests import bounded_seconds
from pipeline.settings import QueueSettings
from trainer_client.batches.batch import Batch, BatchHow, batch_of
from trainer_client.batches.manifest import Manifest
from trainer_client.batches.reading import RolloutsHow, take_rollouts
from trainer_client.batches.rollout import Rollout
from trainer_client.bodies import BodyStore
from trainer_client.calls import Calls
from trainer_client.contact import PATIENCE_S, Contact
from trainer_client.embedded_server import with_server
from trainer_client.first_contact import first_contact
from trainer_client.lifetime import Lifetime
from trainer_client.on_loop import OnLoop

LABEL = "(reader)"
"""What its log lines and errors have in the place of a run's id."""


class BodyReader(OnLoop):
    """Reads what manifests name. Made by `connect_reader`.

    Its calls wait for Redis over an outage, as those of a run do, and raise `ClientClosed` after its end.
    """

    def __init__(self, bodies: BodyStore) -> None:
        self._bodies = bodies

    async def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes under each key, in order, many in few calls; None where there are none."""
        return await self._bodies.fetch(keys)

    async def batch(self, manifest: Manifest, *, shard: tuple[int, int], **how: Unpack[BatchHow]) -> Batch:
        """The share of one rank as microbatches; see `batch_of` for the arguments and errors. All ranks must give the same ones."""
        return await batch_of(manifest, self._bodies, shard=shard, blobs=self._bodies.blobs, **how)

    async def rollouts(self, manifest: Manifest, *, shard: tuple[int, int] = (0, 1), **how: Unpack[RolloutsHow]) -> list[Rollout]:
        """The share of one rank as plain values; see `Step.rollouts` for the arguments and errors."""
        return await take_rollouts(manifest, self._bodies, shard=shard, blobs=self._bodies.blobs, **how)


class ReaderConnection:
    """What `connect_reader` returns: enter it to read."""

    def __init__(self, settings: QueueSettings, *, patience_s: float) -> None:
        self._settings = settings
        self._patience_s = patience_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> BodyReader:
        async with AsyncExitStack() as stack:
            settings = await with_server(self._settings, stack)
            client = command_client(settings)
            stack.push_async_callback(client.aclose)
            contact = Contact(LABEL, patience_s=self._patience_s)
            await first_contact(contact, lambda: ask(client, "PING"), settings)
            life = Lifetime(LABEL)
            stack.callback(life.close)
            calls = Calls(contact, life)
            reader = BodyReader(BodyStore(client, calls, open_store(BlobSettings.load(), settings.namespace)))
            self._stack = stack.pop_all()
            return reader

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()


def connect_reader(redis: str | QueueSettings | None = None, *, patience_s: float = PATIENCE_S) -> ReaderConnection:
    """Connects a rank that holds no run: `async with connect_reader(url) as reader: batch = await reader.batch(manifest, ...)`.

    Args:
        redis: URL of Redis, or all settings; None = as the environment says, else the embedded server of this machine.
        patience_s: how long a call waits for Redis before it fails.

    Raises:
        InvalidRequest: an argument does not fit.
    """
    settings = redis if isinstance(redis, QueueSettings) else QueueSettings.load(redis_url=redis)
    bounded_seconds(patience_s, "patience_s")
    return ReaderConnection(settings, patience_s=patience_s)


__all__ = ["BodyReader", "ReaderConnection", "connect_reader"]
