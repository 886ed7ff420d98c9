"""The job `blobs`: arrays beside trajectories that no job needs any more (`pipeline/blob_sweep.py`)."""

from __future__ import annotations

from ops.housekeeping.places import Found, Workplace
from pipeline.blob_sweep import sweep_blobs
from pipeline.blobs import BlobSettings, open_store


async def sweep(place: Workplace) -> Found:
    """Sweeps the store of all runs; nothing without one."""
    store = open_store(BlobSettings.load(), place.queue.namespace)
    if store is None:
        return {"seen": 0, "removed": 0, "why": "no store: [blobs] dir is not set"}
    async with place.client() as client:
        swept = await sweep_blobs(store, client, namespace=place.queue.namespace, shards=place.queue.shards, dry_run=place.dry_run)
    return {"seen": swept.seen, "removed": swept.deleted}


__all__ = ["sweep"]
