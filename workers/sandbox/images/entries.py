"""What trees are made of, whatever it was read from: a layer of an archive, a folder, the changes of an overlay.

Content is read once, in order: the chunks of an entry are gone when the next one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

EntryKind = Literal["file", "folder", "symlink", "hardlink", "whiteout", "opaque", "special"]
CHUNK_BYTES = 1024 * 1024


class BadArchive(Exception):
    """Bytes that are no archive as they should be, or an entry that no image may have. Its reader knows which image it is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a layer.

    `whiteout` removes what earlier layers put at `name`; `opaque` what they put below the folder `name`; `special` is a device, pipe or
    socket, which no image needs.
    """

    name: str
    """Path as it was written, surrogate-escaped where it is no UTF-8. Nothing in it is trusted."""
    kind: EntryKind
    mode: int = 0o644
    size: int = 0
    """Bytes of content."""
    mtime_s: float = 0.0
    link: str = ""
    """Target of a link."""
    content: Iterable[bytes] = field(default=(), repr=False)


Entries = Iterator[Entry]
