"""What can go wrong with a blob.

RollstreamError
└── BlobError
    ├── BlobStoreAway      there is no store, or it cannot be used now; another worker, or a later attempt, may do
    ├── BlobTooLarge       above the store's bound; never retried
    ├── BlobMissing        it was named and is not there: its job was acked, or the store is another one
    ├── DamagedBlob        a name that is none, or bytes other than its record says; never used
    └── BadImage           bytes that are no image which a model is shown (`images.py`)
"""

from __future__ import annotations

from pipeline.errors import RollstreamError


class BlobError(RollstreamError):
    """A blob could not be kept or had."""


class BlobStoreAway(BlobError):
    """There is no store here, it is full, or it does not answer."""


class BlobTooLarge(BlobError):
    """An array above the bound of the store."""

    def __init__(self, name: str, n_bytes: int, max_bytes: int) -> None:
        super().__init__(f"blob {name!r} has {n_bytes:,} bytes, the bound is {max_bytes:,}: raise max_bytes in [blobs], or keep less")
        self.n_bytes = n_bytes


class BlobMissing(BlobError):
    """Nothing is there under its name."""

    def __init__(self, uri: str, root: str) -> None:
        super().__init__(
            f"{uri} is not in {root}: its job was acked, or its workers write to another folder ([blobs] dir, ROLLSTREAM_BLOBS_DIR)"
        )
        self.uri = uri


class DamagedBlob(BlobError):
    """What is there, or what was named, is not what the record says."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"blob {uri[:200]!r}: {why}")
        self.uri = uri
        self.why = why


__all__ = ["BlobError", "BlobMissing", "BlobStoreAway", "BlobTooLarge", "DamagedBlob"]
