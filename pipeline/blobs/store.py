"""What a store of blobs is, whatever it keeps them in.

Invariants:
  1. A blob is there whole when `put` returns, or not at all.
  2. What `get` returns has the digest, the dtype and the shape that the record says.
  3. A life's folder is its own; deleting one takes nothing of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from pipeline.blobs.names import Life
from pipeline.messages import Blob


@dataclass(frozen=True, slots=True)
class KeptLife:
    """A life that is in the store."""

    life: Life
    age_s: float
    """Since something was last written there."""


class BlobStore(Protocol):
    """All calls block: make them in a thread."""

    def put(self, life: Life, name: str, array: NDArray[Any], *, part: int | None = None) -> Blob:
        """Keeps an array.

        Args:
            name: what it is.
            part: tells apart several of one name.

        Raises:
            BlobStoreAway, BlobTooLarge
            TypeError, ValueError: a dtype or name that is none.
        """
        ...

    def get(self, blob: Blob, job: str) -> NDArray[Any]:
        """The array that a record of this job names; read-only.

        Raises:
            BlobMissing, DamagedBlob, BlobStoreAway
        """
        ...

    def drop(self, lives: Iterable[Life]) -> int:
        """Deletes what attempts kept; returns how many were there."""
        ...

    def drop_jobs(self, run: str, jobs: Iterable[str]) -> int:
        """Deletes what all attempts of jobs of a run kept; returns how many jobs had something."""
        ...

    def jobs_of(self, run: str) -> set[str]:
        """Jobs of a run that have something here."""
        ...

    def lives(self, run: str = "") -> Iterator[KeptLife]:
        """All that is here of a run, or of all runs, in no order."""
        ...


__all__ = ["BlobStore", "KeptLife"]
