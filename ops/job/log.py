"""What EVAL kept beside a grade, for people: the log of a test run, whole.

By-products are bytes as their grader gave them, most often compressed. They come out of what a model's program printed: an archive of a few
bytes may hold gigabytes, and a log may hold what a terminal obeys. So it is unpacked piece by piece up to a bound, and a terminal is shown
every control character spelt out; a file or a pipe gets the bytes as they are.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import cast

from ops.job.story import NoSuchJob, byproducts_of
from ops.visible_text import visible
from pipeline.errors import RollstreamError
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask

PIECE_BYTES = 1 << 20
TAB = 8


class NoSuchByproduct(RollstreamError):
    """The job keeps none of that name; says which there are."""


class BadLog(RollstreamError):
    """What is kept cannot be unpacked to its end."""


async def byproduct(client: AsyncClient, keys: Keys, job: str, name: str) -> bytes:
    """One by-product, as kept.

    Raises:
        NoSuchJob
        NoSuchByproduct
        BrokerError
    """
    state, attempt = await ask(client, "HMGET", keys.job(job), "st", "b.eval")
    if state is None:
        raise NoSuchJob(job)
    if attempt is None:
        where = "it has no grade yet" if state != b"done" else "no grade is kept of it: it ended before EVAL, or its group was filtered"
        raise NoSuchByproduct(f"job {job} keeps no {name!r}: {where}")
    content = await ask(client, "HGET", keys.attached(job, attempt.decode()), name)
    if content is None:
        there = ", ".join(await byproducts_of(client, keys, job, attempt.decode()))
        raise NoSuchByproduct(f"job {job} keeps no {name!r} beside its grade; it keeps {there or 'nothing'}")
    return cast(bytes, content)


def unpacked(content: bytes, *, most_bytes: int) -> Iterator[bytes]:
    """The content in pieces, unpacked when it is gzip, zlib, xz or bzip2.

    Raises:
        BadLog: it is damaged, or has more than `most_bytes`; what came before it was given.
    """
    made = _unpacker_of(content)
    total = 0
    for piece in _pieces(content) if made is None else _unpack(content, made):
        total += len(piece)
        if total > most_bytes:
            yield piece[: len(piece) - (total - most_bytes)]
            raise BadLog(f"it goes on beyond {most_bytes:,} bytes, the bound: raise --most-mib")
        yield piece


def _unpacker_of(content: bytes) -> zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor | None:
    if content.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31)
    if content[:1] == b"\x78" and len(content) > 1 and int.from_bytes(content[:2], "big") % 31 == 0:
        return zlib.decompressobj()
    if content.startswith(b"BZh"):
        return bz2.BZ2Decompressor()
    if content.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMADecompressor(memlimit=256 << 20)
    return None


def _pieces(content: bytes) -> Iterator[bytes]:
    for at in range(0, len(content), PIECE_BYTES):
        yield content[at : at + PIECE_BYTES]


def _unpack(content: bytes, made: zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor) -> Iterator[bytes]:
    """At most `PIECE_BYTES` at a time, however much the content claims to hold. Several archives in a row are one."""
    fed = content
    try:
        while True:
            piece = made.decompress(fed, PIECE_BYTES)
            yield piece
            if made.eof:
                fed = made.unused_data
                more = _unpacker_of(fed)
                if more is None:
                    break
                made = more
            else:
                fed = made.unconsumed_tail if hasattr(made, "unconsumed_tail") else b""
                if not piece and not fed:
                    raise BadLog("it is cut: what was packed has no end")
    except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise BadLog(f"it is damaged: {error}") from error
    if fed.strip(b"\0"):
        raise BadLog(f"{len(fed):,} bytes that are no archive follow its end")


def for_a_terminal(pieces: Iterable[bytes]) -> Iterator[str]:
    """Lines that a terminal can be shown: what it would obey, and bytes that are no text, are spelt out."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")("backslashreplace"), ""
    for piece in pieces:
        *lines, rest = (rest + decoder.decode(piece)).split("\n")
        for line in lines:
            yield visible(line.expandtabs(TAB)) + "\n"
    rest += decoder.decode(b"", final=True)
    if rest:
        yield visible(rest.expandtabs(TAB)) + "\n"
