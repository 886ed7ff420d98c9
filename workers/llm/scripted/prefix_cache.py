"""A prefix cache that counts like vLLM's: whole blocks, least recently used out, nothing shared between salts.

Like the engine's, it survives a change of the weights: a prompt that meets blocks of older weights is answered with them, wrongly,
unless the caller flushes or puts the version into the salt. Each block remembers the label it was made under, so that the fault shows.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np


class PrefixCache:
    """Block hashes in order of last use."""

    def __init__(self, *, block_size: int = 16, max_blocks: int = 65_536) -> None:
        self.block_size = block_size
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, str] = OrderedDict()
        self.queries = 0
        """Tokens asked for."""
        self.hits = 0
        """Tokens found."""

    def look_up(self, ids: Sequence[int], salt: str | None) -> tuple[int, str | None]:
        """Cached tokens in front of `ids`, and the label of the newest block among them. The last token is always computed anew."""
        cached, label = 0, None
        for key in self._keys(ids[:-1], salt):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            cached, label = cached + self.block_size, self._blocks[key]
        self.queries += len(ids)
        self.hits += cached
        return cached, label

    def add(self, ids: Sequence[int], salt: str | None, label: str) -> None:
        """Keep the whole blocks of `ids`; those that are there keep their label."""
        for key in self._keys(ids, salt):
            self._blocks.setdefault(key, label)
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def _keys(self, ids: Sequence[int], salt: str | None) -> Iterator[bytes]:
        key = b"" if salt is None else hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        raw = np.asarray(ids, dtype="<u4").tobytes()
        width = 4 * self.block_size
        for start in range(0, len(raw) - width + 1, width):
            key = hashlib.blake2b(key + raw[start : start + width], digest_size=16).digest()
            yield key
