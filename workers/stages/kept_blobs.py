"""What one attempt keeps in the store of blobs: written before the body that names it is handed off, deleted when the attempt gives up.

An attempt that dies deletes nothing, and one whose hand-off is refused (another has the job) does not learn of it here: the sweep
(`pipeline/blob_sweep.py`) finds both.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import structlog
from numpy.typing import NDArray

from pipeline.blobs import BlobStore, BlobStoreAway, Life
from pipeline.failpoints import failpoint
from pipeline.messages import Blob, JobSpec

log = structlog.get_logger(__name__)


class KeptBlobs:
    """Those of one attempt; a `KeepBlob`.

    Args:
        store: None = this process has none.
    """

    def __init__(self, store: BlobStore | None, spec: JobSpec) -> None:
        self._store = store
        self._spec = spec
        self._life: Life | None = None
        self._stays = False

    async def __aenter__(self) -> Self:
        """Refuses a job that will want to keep something where nothing can be kept, before it has cost anything."""
        if self._spec.template.routed_experts is not None or self._spec.template.chat.images:
            self._needed()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._life is None or self._store is None or self._stays:
            return
        if not await asyncio.to_thread(self._store.drop, [self._life]):
            log.warning("blobs_not_deleted", job_id=self._life.job, attempt=self._life.attempt)

    def stay(self) -> None:
        """What was kept is named by what is handed on."""
        self._stays = True

    def _needed(self) -> BlobStore:
        if self._store is None:
            raise BlobStoreAway(
                "no folder for blobs is set where RUN workers run: set ROLLSTREAM_BLOBS_DIR, or dir in [blobs] of rollstream.toml, to one "
                "that workers and trainer share"
            )
        return self._store

    async def __call__(self, name: str, array: NDArray[Any], *, part: int | None = None) -> Blob:
        store = self._needed()
        life = self._life = self._life or Life.new(self._spec.job, self._spec.attempt)
        blob = await asyncio.to_thread(store.put, life, name, array, part=part)
        failpoint("blob_put")
        return blob


__all__ = ["KeptBlobs"]
