"""Arrays as the bytes of a blob: raw, little endian, of a dtype in a closed list. No header, no pickle."""

from __future__ import annotations

import hashlib
import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.blobs.errors import DamagedBlob
from pipeline.messages import Blob

DTYPES = frozenset({"bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "float16", "float32", "float64"})
MAX_DIMENSIONS = 8


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """The bytes that are kept of an array.

    Raises:
        TypeError: its dtype is not in the list.
    """
    if array.dtype.name not in DTYPES:
        raise TypeError(f"expected an array of {', '.join(sorted(DTYPES))}, got {array.dtype}")
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data


def digest_of(content: memoryview | bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_record(blob: Blob, max_bytes: int) -> None:
    """Whether a record can be believed enough to make room for what it names.

    Raises:
        DamagedBlob
    """
    if blob.dtype not in DTYPES:
        raise DamagedBlob(blob.uri, f"dtype {blob.dtype[:40]!r} is none that is read")
    if len(blob.shape) > MAX_DIMENSIONS or any(size < 0 for size in blob.shape):
        raise DamagedBlob(blob.uri, f"shape {blob.shape[:MAX_DIMENSIONS]} is none")
    size = math.prod(blob.shape) * np.dtype(blob.dtype).itemsize
    if size != blob.n_bytes:
        raise DamagedBlob(blob.uri, f"{blob.dtype} {list(blob.shape)} has {size:,} bytes, and the record says {blob.n_bytes:,}")
    if size > max_bytes:
        raise DamagedBlob(blob.uri, f"{size:,} bytes are above the bound of {max_bytes:,}")


def as_array(blob: Blob, content: bytearray) -> NDArray[Any]:
    """The array of a checked record, read-only, over the bytes that came.

    Raises:
        DamagedBlob: they are others than were kept.
    """
    if digest_of(memoryview(content)) != blob.digest:
        raise DamagedBlob(blob.uri, "its bytes are not those that were kept: the digest is another one")
    array = np.frombuffer(content, np.dtype(blob.dtype).newbyteorder("<")).reshape(blob.shape)
    if sys.byteorder != "little":
        array = array.astype(blob.dtype)
    array.setflags(write=False)
    return array


__all__ = ["DTYPES", "as_array", "check_record", "digest_of", "raw_bytes"]
