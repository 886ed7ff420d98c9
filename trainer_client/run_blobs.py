"""Deletes what a run's jobs kept beside their records: with the ack, and now and then what was missed.

The ack is Redis's to carry out: it leaves what has not ended. So afterwards Redis is asked which of the acked jobs it does not know any
more, and those are deleted, many in few calls and in a thread. What was missed (a trainer died in between, Redis was away, a killed worker,
an attempt that another one fenced) is swept when a trainer connects and each hour after (`pipeline/blob_sweep.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from trainer_client.inbox import Kind
from trainer_client.logs import Log

if TYPE_CHECKING:  # loaded where a store is set
    from pipeline.blobs import BlobStore

log = Log(__name__)

SWEEP_EVERY_S = 3600.0


class RunBlobs:
    """Those of one run.

    Args:
        store: None = none is set, and nothing is to be done.
    """

    def __init__(self, run: str, store: BlobStore | None, client: AsyncClient, settings: QueueSettings) -> None:
        self._run = run
        self._store = store
        self._client = client
        self._settings = settings

    async def sweep(self, stop: asyncio.Event) -> None:
        """Looks for what nobody needs, until told to stop."""
        if self._store is None:
            return
        from pipeline.blob_sweep import sweep_blobs

        while not stop.is_set():
            try:
                swept = await sweep_blobs(
                    self._store, self._client, namespace=self._settings.namespace, shards=self._settings.shards, run=self._run
                )
                if swept.deleted:
                    log.info("blobs_swept", run=self._run, attempts=swept.deleted)
            except BrokerError as error:
                log.warning("blobs_not_swept", run=self._run, error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_EVERY_S):
                    await stop.wait()

    async def delete(self, units: Iterable[tuple[str, Kind, str]]) -> int:
        """Deletes what jobs and groups had that were acked just now; returns of how many jobs. An ack never fails of it."""
        store = self._store
        if store is None:
            return 0
        from pipeline.blob_sweep import job_states

        acked = {unit for _, kind, unit in units if kind != "step"}
        here = await asyncio.to_thread(store.jobs_of, self._run)
        asked = [job for job in here if job in acked or job.rpartition(".")[0] in acked]
        if not asked:
            return 0
        try:
            states = await job_states(self._client, asked, namespace=self._settings.namespace, shards=self._settings.shards)
        except BrokerError as error:
            log.warning("acked_blobs_are_left_to_the_sweep", run=self._run, jobs=len(asked), error=str(error))
            return 0
        return await asyncio.to_thread(store.drop_jobs, self._run, [job for job, state in states.items() if state is None])


__all__ = ["RunBlobs"]
