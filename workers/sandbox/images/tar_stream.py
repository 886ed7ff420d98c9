"""Reads tar archives from a stream, in constant memory whatever the archive says.

Python's own `tarfile` takes what a header promises: a name of 10 GB would be read into memory. Here names, link targets and extended
headers have a bound, and the stream is never held. Formats: ustar, pax, and GNU's long names. Sparse files are refused: no image builder
writes them, and they are how a small archive becomes a huge file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol

from workers.sandbox.images.entries import CHUNK_BYTES, BadArchive, Entries, Entry, EntryKind

BLOCK = 512
MAX_HEADER_BYTES = 1024 * 1024
"""Of one extended header: a path has at most 4 KiB, attributes of a file some tens of KiB."""

_KINDS: dict[bytes, EntryKind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"3": "special",
    b"4": "special",
    b"5": "folder",
    b"6": "special",
}


class Readable(Protocol):
    """A binary stream."""

    def read(self, size: int, /) -> bytes: ...


def read_exactly(stream: Readable, size: int) -> bytes:
    """That many bytes, fewer only at the end of the stream."""
    parts = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class TarStream:
    """The entries of one archive, in order. `position` is where in the stream the content of the last one given begins.

    Args:
        seek: takes the stream to a place counted from its beginning, where it can do that: what is passed over is then not read.
    """

    def __init__(self, stream: Readable, *, seek: Callable[[int], object] | None = None) -> None:
        self._stream = stream
        self._seek = seek
        self._offset = 0
        self._left = 0
        """Bytes of the current entry's content, padding included, that nobody has read."""
        self.position = 0

    def entries(self) -> Entries:
        """Raises:
        BadArchive: the bytes are no tar, end too early, or name something out of bounds.
        """
        extended: dict[str, str] = {}
        common: dict[str, str] = {}
        while (header := self._next_header()) is not None:
            kind, size = header[156:157], _number(header[124:136], "size")
            if size < 0:
                raise BadArchive("an entry with a negative size")
            if kind in (b"x", b"g"):
                (extended if kind == b"x" else common).update(_pax(self._header_content(size)))
            elif kind == b"L":
                extended["path"] = _text(self._header_content(size))
            elif kind == b"K":
                extended["linkpath"] = _text(self._header_content(size))
            else:
                yield self._entry(header, kind, size, common | extended)
                extended = {}

    def skip(self) -> None:
        """Passes over the content of the last entry."""
        if self._seek is not None and self._left:
            self._offset += self._left
            self._left = 0
            self._seek(self._offset)
        while self._left:
            part = self._stream.read(min(self._left, CHUNK_BYTES))
            if not part:
                raise BadArchive("it ends in the middle of a file")
            self._left -= len(part)
            self._offset += len(part)

    # -- parts of an archive ----------------------------------------------------------------------------------------------------------

    def _next_header(self) -> bytes | None:
        """The next block; None at the end."""
        self.skip()
        header = read_exactly(self._stream, BLOCK)
        self._offset += len(header)
        if not header or header == bytes(BLOCK):
            return None
        if len(header) < BLOCK:
            raise BadArchive("it ends in the middle of a header")
        said = _number(header[148:156], "checksum")
        if said != sum(header[:148]) + sum(header[156:]) + 8 * 32:
            raise BadArchive("a header has a wrong checksum: damaged, or no tar")
        return header

    def _header_content(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise BadArchive(f"an extended header of {size:,} bytes; {MAX_HEADER_BYTES:,} are taken")
        self._begin(size)
        content = read_exactly(self._stream, size)
        self._offset += len(content)
        self._left -= len(content)
        if len(content) < size:
            raise BadArchive("it ends in the middle of a header")
        return content

    def _begin(self, size: int) -> None:
        self.position = self._offset
        self._left = -(-size // BLOCK) * BLOCK

    def _entry(self, header: bytes, kind_byte: bytes, size: int, extended: dict[str, str]) -> Entry:
        if kind_byte == b"S" or any(key.startswith("GNU.sparse.") for key in extended):
            raise BadArchive("a sparse file, which no image builder writes")
        kind = _KINDS.get(kind_byte)
        if kind is None:
            raise BadArchive(f"an entry of unknown type {kind_byte!r}")
        name = extended.get("path")
        if name is None:
            name = _text(header[0:100])
            prefix = _text(header[345:500]) if header[257:262] == b"ustar" and header[262:263] == b"\0" else ""
            name = f"{prefix}/{name}" if prefix else name
        if "size" in extended:
            size = _decimal(extended["size"], "size")
        if kind == "file" and kind_byte == b"\0" and name.endswith("/"):
            kind = "folder"
        if kind != "file":
            size = 0  # only files have content, whatever the header says
        self._begin(size)
        return Entry(
            name=name,
            kind=kind,
            mode=_number(header[100:108], "mode") & 0o7777,
            size=size,
            mtime_s=_time(extended.get("mtime")) if "mtime" in extended else float(_number(header[136:148], "time")),
            link=extended.get("linkpath", _text(header[157:257])),
            content=self._content(size) if size else (),
        )

    def _content(self, size: int) -> Iterator[bytes]:
        while size:
            part = self._stream.read(min(size, CHUNK_BYTES))
            if not part:
                raise BadArchive("it ends in the middle of a file")
            size -= len(part)
            self._left -= len(part)
            self._offset += len(part)
            yield part


def _text(field: bytes) -> str:
    return os.fsdecode(field.split(b"\0", 1)[0])


def _number(field: bytes, what: str) -> int:
    """Octal digits, or base 256 where the first bit says so."""
    if field[0] & 0x80:
        value = (
            int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        )
        if abs(value) >= 1 << 63:
            raise BadArchive(f"a {what} out of range")
        return value
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise BadArchive(f"a {what} that is no number: {digits[:20]!r}") from None


def _decimal(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadArchive(f"a {what} that is no number: {text[:20]!r}")
    return int(text)


def _time(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        raise BadArchive(f"a time that is no number: {(text or '')[:20]!r}") from None
    if not abs(value) < 1 << 40:
        raise BadArchive("a time out of range")
    return value


def _pax(content: bytes) -> dict[str, str]:
    """The records of an extended header: `LENGTH KEY=VALUE\\n`."""
    records: dict[str, str] = {}
    place = 0
    while place < len(content):
        space = content.find(b" ", place, place + 20)
        digits = content[place:space] if space > 0 else b""
        if not digits.isdigit():
            raise BadArchive("an extended header that is none")
        end = place + int(digits)
        record = content[space + 1 : end]
        key, equals, value = record.partition(b"=")
        if end > len(content) or not record.endswith(b"\n") or not equals:
            raise BadArchive("an extended header that is none")
        name = os.fsdecode(key)
        if name in ("path", "linkpath", "size", "mtime") or name.startswith("GNU.sparse."):  # attributes may be long and are not kept
            records[name] = os.fsdecode(value[:-1])
        place = end
    return records
