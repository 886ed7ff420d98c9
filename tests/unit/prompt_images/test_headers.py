"""Images by their header: what is taken, and that what is hostile costs nothing and is told."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.blobs import BadImage, ImageKind, image_kind
from pipeline.blobs.images import MAX_BYTES, MAX_SIDE
from tests.prompt_image_files import a_jpeg, a_png, a_webp, chunk, png_of

WHOLE = {
    "image/png": a_png(640, 480),
    "image/jpeg": a_jpeg(640, 480),
    "image/webp": a_webp(640, 480),
    "image/webp extended": a_webp(640, 480, extended=True),
    "image/webp lossy": b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\x80\x02\xe0\x01",
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_images_say_what_they_are(name: str) -> None:
    assert image_kind(WHOLE[name]) == ImageKind(name.partition(" ")[0], 640, 480)


REFUSED = {
    "a bomb": (png_of(100_000, 100_000, zlib.compress(bytes(1000))), "100,000 x 100,000 pixels"),
    "a bomb in one direction": (png_of(MAX_SIDE + 1, 1, b""), "16,385 x 1 pixels"),
    "many pixels within the sides": (a_jpeg(16_000, 16_000), "16,000 x 16,000 pixels"),
    "no size": (a_jpeg(56, 0), "56 x 0 pixels"),
    "a bomb in a small canvas": (a_webp(10, 10, extended=True, inner=(16_000, 16_000)), "two sizes"),
    "an animation": (a_webp(extended=True, flags=2), "animated"),
    "too many bytes": (a_png() + bytes(MAX_BYTES), "at most 16,777,216"),
    "SVG": (b'<?xml version="1.0"?><svg width="1" height="1"/>', "SVG"),
    "GIF": (b"GIF89a" + bytes(20), "GIF: convert it first"),
    "text": (b"this is no image", "bytes that begin with"),
    "nothing": (b"", "nothing"),
    "a PNG by name": (a_jpeg()[2:], "expected PNG, JPEG or WebP"),
    "no header": (b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b""), "does not begin with its size"),
    "no pixels": (a_png()[:33] + chunk(b"IEND", b""), "without pixels"),
    "a depth that no PNG has": (png_of(2, 2, b"", colour=5), "header is none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_that_a_model_is_shown_is_refused_with_the_reason(name: str) -> None:
    content, told = REFUSED[name]

    with pytest.raises(BadImage, match=told):
        image_kind(content)


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "image/webp lossy"])
def test_an_image_that_is_cut_off_anywhere_is_refused(name: str) -> None:
    whole = WHOLE[name]
    padded = len(whole) - (1 if name.startswith("image/webp") else 0)

    for end in range(padded):
        with pytest.raises(BadImage):
            image_kind(whole[:end])


def test_a_second_size_in_a_jpeg_is_refused() -> None:
    frame = a_jpeg(8, 8)[8:21]

    with pytest.raises(BadImage, match="two sizes"):
        image_kind(b"\xff\xd8" + a_jpeg(8, 8)[2:8] + frame + a_jpeg(9_000, 9_000)[8:])


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_any_bytes_are_an_image_or_refused(name: str, data: st.DataObject) -> None:
    content = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, min(80, len(content) - 1)))] = data.draw(st.integers(0, 255))

    try:
        kind = image_kind(bytes(content))
    except BadImage:
        return
    assert 1 <= kind.width <= MAX_SIDE
    assert 1 <= kind.height <= MAX_SIDE
