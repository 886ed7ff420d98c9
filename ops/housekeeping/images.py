"""The job `images`: what dead processes left half made of images, and images beyond the node's budget."""

from __future__ import annotations

import asyncio

from ops.housekeeping.places import Found, Workplace
from workers.sandbox.images import ImageStore


async def prune(place: Workplace) -> Found:
    """Prunes the store of this machine; a dry run names what the budget would have removed."""
    return await asyncio.to_thread(_prune, place)


def _prune(place: Workplace) -> Found:
    store = ImageStore.here()
    if not place.dry_run:
        done = store.prune()
        return {
            "removed": len(done.removed) + done.swept,
            "images": list(done.removed),
            "freed_bytes": done.freed_bytes,
            "swept": done.swept,
        }
    images = store.node.images()
    size, going = sum(image.record.size_bytes for image in images), []
    if size > store.budget.high_bytes:
        for image in images:
            if size <= store.budget.low_bytes:
                break
            if not image.is_leased:
                going.append(image.record.digest)
                size -= image.record.size_bytes
    return {"removed": len(going), "images": going}


__all__ = ["prune"]
