"""How much of the disk extracted images may take, and which go when it is too much.

Past the upper water mark, images that nobody leases are removed, least recently used first, until the lower one is reached: two marks, so
that a full store does not remove one image for each that comes. What is counted is what was found on disk when an image was made; files
that two images share are counted in both, so the store never takes more than its count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.sandbox.images.node_store import NodeStore, StoredImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of the node's store, bytes."""

    max_bytes: int
    high: float = 0.8
    """Share of it above which images go."""
    low: float = 0.6
    """Share of it down to which they do."""

    @property
    def high_bytes(self) -> int:
        return int(self.max_bytes * self.high)

    @property
    def low_bytes(self) -> int:
        return int(self.max_bytes * self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What went and what could not."""

    removed: tuple[str, ...] = ()
    """Digests."""
    freed_bytes: int = 0
    size_bytes: int = 0
    """Of what is left."""
    leased: tuple[str, ...] = ()
    """Digests that would have gone, had nobody used them."""
    swept: int = 0
    """Folders that dead processes had left half made or half removed."""


def keep_within(store: NodeStore, budget: Budget, *, coming_bytes: int = 0, keep: frozenset[str] = frozenset()) -> Pruned:
    """Removes images when the store, with what is coming, is past its upper mark.

    Args:
        keep: digests that stay.
    """
    size = _size(store.images())
    if size + coming_bytes <= budget.high_bytes:
        return Pruned(size_bytes=size)
    return prune(store, max(0, budget.low_bytes - coming_bytes), keep=keep)


def prune(store: NodeStore, target_bytes: int, *, keep: frozenset[str] = frozenset()) -> Pruned:
    """Removes images, the longest unused first, until the rest takes no more than the target. One in use is passed over for the next."""
    images = store.images()
    size = before = _size(images)
    removed: list[str] = []
    leased: list[str] = []
    for image in images:
        digest = image.record.digest
        if size <= target_bytes:
            break
        if digest in keep:
            continue
        if store.remove(digest):
            removed.append(digest)
            size -= image.record.size_bytes
        else:
            leased.append(digest)
    return Pruned(removed=tuple(removed), freed_bytes=before - size, size_bytes=size, leased=tuple(leased))


def _size(images: Sequence[StoredImage]) -> int:
    return sum(image.record.size_bytes for image in images)
