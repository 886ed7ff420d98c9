"""Images, judged by their header: PNG, JPEG and WebP that are whole and not too large. Nothing is decoded here, so a bomb costs nothing.

A file may still hold something else than its header says. Whoever decodes it meets that within the sizes that were allowed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.blobs.errors import BlobError

IMAGE = "image"
"""The name of each blob that is an image: uint8, shape [n_bytes], the file as it came."""
MAX_BYTES = 16 * 1024 * 1024
MAX_PIXELS = 2**25
"""33 megapixels: 134 MB once decoded. Processors of vision models scale down what has more than a few."""
MAX_SIDE = 16_384

_PNG, _JPEG, _RIFF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF"
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits by type of colour."""
_NO_SIZE = frozenset((0xC4, 0xC8, 0xCC))
"""Markers of JPEG among those of frames that are none."""
_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers of JPEG without a length."""
_ANIMATED = 0x02


class BadImage(BlobError, ValueError):
    """Bytes that are no image which a model is shown; the sentence says what they are instead."""


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What the header of an image says."""

    media_type: str
    width: int
    """Pixels."""
    height: int

    def __str__(self) -> str:
        return f"{self.media_type}, {self.width} x {self.height}"


def image_kind(content: bytes) -> ImageKind:
    """What an image is.

    Raises:
        BadImage: it is of another kind, too large, or not whole.
    """
    if len(content) > MAX_BYTES:
        raise BadImage(f"an image of {len(content):,} bytes: at most {MAX_BYTES:,} are taken; scale it down")
    try:
        if content.startswith(_PNG):
            kind = _png(content)
        elif content.startswith(_JPEG):
            kind = _jpeg(content)
        elif content.startswith(_RIFF) and content[8:12] == b"WEBP":
            kind = _webp(content)
        else:
            raise BadImage(f"expected PNG, JPEG or WebP, got {_guess(content)}")
    except (struct.error, IndexError):
        raise BadImage(f"an image that is cut off: it ends after {len(content):,} bytes, within its header") from None
    if not (1 <= kind.width <= MAX_SIDE and 1 <= kind.height <= MAX_SIDE and kind.width * kind.height <= MAX_PIXELS):
        raise BadImage(
            f"an image of {kind.width:,} x {kind.height:,} pixels: at most {MAX_SIDE:,} a side and {MAX_PIXELS:,} in all are taken; "
            "scale it down"
        )
    return kind


def _png(content: bytes) -> ImageKind:
    kind: ImageKind | None = None
    has_data = False
    at = len(_PNG)
    while True:
        length, name = struct.unpack_from(">I4s", content, at)
        if kind is None:
            if name != b"IHDR" or length != 13:
                raise BadImage("a PNG that does not begin with its size")
            width, height, depth, colour, packing, filtering, interlaced = struct.unpack_from(">IIBBBBB", content, at + 8)
            if depth not in _PNG_DEPTHS.get(colour, ()) or packing or filtering or interlaced > 1:
                raise BadImage("a PNG whose header is none")
            kind = ImageKind("image/png", width, height)
        has_data |= name == b"IDAT"
        at += 12 + length
        if at > len(content):
            raise BadImage(f"a PNG that is cut off after {len(content):,} bytes")
        if name == b"IEND":
            if not has_data:
                raise BadImage("a PNG without pixels")
            return kind


def _jpeg(content: bytes) -> ImageKind:
    kind: ImageKind | None = None
    at = 2
    while True:
        if content[at] != 0xFF:
            raise BadImage("a JPEG whose segments do not follow on one another")
        while content[at] == 0xFF:
            at += 1
        marker = content[at]
        at += 1
        if marker in _ALONE:
            continue
        (length,) = struct.unpack_from(">H", content, at)
        if marker == 0xD9 or length < 2:
            raise BadImage("a JPEG without pixels")
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            if kind is not None:
                raise BadImage("a JPEG of two sizes")
            height, width = struct.unpack_from(">HH", content, at + 3)
            kind = ImageKind("image/jpeg", width, height)
        at += length
        if marker == 0xDA:
            # An end within the coded pixels is escaped, so one behind their beginning is the image's own.
            if kind is None or content.find(b"\xff\xd9", at) < 0:
                raise BadImage(f"a JPEG that is cut off after {len(content):,} bytes" if kind else "a JPEG without a size")
            return kind


def _webp(content: bytes) -> ImageKind:
    (size,) = struct.unpack_from("<I", content, 4)
    if size + 8 > len(content):
        raise BadImage(f"a WebP that is cut off: it has {len(content):,} of {size + 8:,} bytes")
    canvas: ImageKind | None = None
    for name, at, length in _chunks(content, size + 8):
        if name == b"VP8X":
            if content[at] & _ANIMATED:
                raise BadImage("an animated WebP: expected one image")
            canvas = ImageKind("image/webp", _u24(content, at + 4) + 1, _u24(content, at + 7) + 1)
        elif name in (b"VP8 ", b"VP8L"):
            kind = _webp_frame(content, name, at, length)
            if canvas is not None and kind != canvas:
                raise BadImage("a WebP of two sizes")
            return kind
    raise BadImage("a WebP without pixels")


def _chunks(content: bytes, end: int) -> Iterator[tuple[bytes, int, int]]:
    at = 12
    while at < end:
        name, length = struct.unpack_from("<4sI", content, at)
        if at + 8 + length > end:
            raise BadImage("a WebP with a part that goes beyond its end")
        yield name, at + 8, length
        at += 8 + length + length % 2


def _webp_frame(content: bytes, name: bytes, at: int, length: int) -> ImageKind:
    if name == b"VP8 ":
        if length < 10 or content[at + 3 : at + 6] != b"\x9d\x01\x2a":
            raise BadImage("a WebP whose header is none")
        width, height = struct.unpack_from("<HH", content, at + 6)
        return ImageKind("image/webp", width & 0x3FFF, height & 0x3FFF)
    if length < 5 or content[at] != 0x2F:
        raise BadImage("a WebP whose header is none")
    (bits,) = struct.unpack_from("<I", content, at + 1)
    return ImageKind("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)


def _u24(content: bytes, at: int) -> int:
    return content[at] | content[at + 1] << 8 | content[at + 2] << 16


def _guess(content: bytes) -> str:
    """What a person may have sent instead."""
    begins = content[:256].lstrip().lower()
    if begins.startswith((b"<svg", b"<?xml", b"<!doctype svg")):
        return "SVG, which is a program that draws: render it to PNG first"
    known = {b"gif8": "GIF", b"bm": "BMP", b"ii*\0": "TIFF", b"mm\0*": "TIFF", b"%pdf": "PDF"}
    found = next((name for magic, name in known.items() if begins.startswith(magic)), "")
    return f"{found}: convert it first" if found else f"{len(content):,} bytes that begin with {content[:8].hex(' ') or 'nothing'}"


__all__ = ["IMAGE", "MAX_BYTES", "MAX_PIXELS", "MAX_SIDE", "BadImage", "ImageKind", "image_kind"]
