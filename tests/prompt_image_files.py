"""Images as files, for tests: whole ones of a size, made here."""

from __future__ import annotations

import base64
import struct
import zlib


def a_png(width: int = 56, height: int = 28, *, shade: int = 0) -> bytes:
    """A grey PNG that any decoder takes."""
    pixels = zlib.compress((b"\0" + bytes([shade]) * width) * height, 9)
    return png_of(width, height, pixels)


def png_of(width: int, height: int, pixels: bytes, *, colour: int = 0) -> bytes:
    """A PNG that says it has some size, whatever its pixels are."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")))


def chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def a_jpeg(width: int = 56, height: int = 28) -> bytes:
    """The markers of a JPEG around no pixels to speak of."""
    frame = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + b"\xff\xe0\0\4ab" + b"\xff\xc0" + frame + b"\xff\xda\0\x08\1\1\0\0\x3f\0" + b"\x12\xff\0\x34" + b"\xff\xd9"


def a_webp(width: int = 56, height: int = 28, *, extended: bool = False, inner: tuple[int, int] | None = None, flags: int = 0) -> bytes:
    """A WebP of one lossless frame, in the extended form with a canvas around it."""
    inner_width, inner_height = inner or (width, height)
    frame = b"\x2f" + struct.pack("<I", (inner_width - 1) | (inner_height - 1) << 14) + b"\0"
    parts = _riff(b"VP8L", frame)
    if extended:
        canvas = bytes([flags, 0, 0, 0]) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        parts = _riff(b"VP8X", canvas) + parts
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts


def _riff(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def as_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
