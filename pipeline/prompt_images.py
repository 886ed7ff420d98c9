"""Images in rows, brought into one form where they are fed: `images`, a list of base64, and `<image>` in the text where each stands.

    {"question": "<image> How many?", "images": [...]}            a column of images, as in data sets of Hugging Face
    {"prompt": [{"role": "user", "content": [{"type": "image_url", ...}, {"type": "text", ...}]}]}     parts of OpenAI's dialogues
    {"question": "How many?", "image": {"bytes": ...}}            one image

An image is bytes, base64, a data URL, a map with `bytes` or `path`, or, of a row that was read from a file, a path below that file's
folder. Nothing is fetched. Each is judged by its header before it is sent anywhere.

In a prompt without `<image>` its images stand before the text, in their order.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.blobs.images import MAX_BYTES, BadImage, image_kind

IMAGES = "images"
MARK = "<image>"
"""Stands in a text where an image does."""
MAX_IMAGES = 64
"""Of one prompt."""
_DIALOGUES = ("prompt", "messages")
_PART_KINDS = ("image", "image_url", "input_image")


def with_inline_images(row: Mapping[str, object], folder: Path | None = None) -> Mapping[str, object]:
    """The row with its images in the one form; the row itself where it has none.

    Args:
        folder: of the file that the row is from; None = paths mean nothing.

    Raises:
        ValueError: an image that is none, too many, or a path that is not below the folder; says where.
    """
    listed = row.get(IMAGES)
    single = row.get("image")
    has_single = isinstance(single, bytes | bytearray | memoryview | Mapping)
    with_parts = [name for name in _DIALOGUES if _has_parts(row.get(name))]
    if not isinstance(listed, list | tuple) and not has_single and not with_parts:
        return row
    found = dict(row)
    given = [*(listed if isinstance(listed, list | tuple) else ()), *([found.pop("image")] if has_single else ())]
    for name in with_parts:
        given = _flattened(found, name, given)
    if len(given) > MAX_IMAGES:
        raise ValueError(f"expected at most {MAX_IMAGES} images in one prompt, got {len(given)}")
    found[IMAGES] = [_inline(image, f"{IMAGES}[{place}]", folder) for place, image in enumerate(given)]
    return found


def images_in(data: Mapping[str, object]) -> list[bytes]:
    """The files of a prompt's images, in order. What came over the wire is judged again.

    Raises:
        BadImage: one is none.
    """
    listed = data.get(IMAGES)
    if not isinstance(listed, list | tuple):
        return []
    if len(listed) > MAX_IMAGES:
        raise BadImage(f"expected at most {MAX_IMAGES} images in one prompt, got {len(listed)}")
    return [_of_base64(image, f"{IMAGES}[{place}]") for place, image in enumerate(listed)]


def _has_parts(dialogue: object) -> bool:
    return isinstance(dialogue, list | tuple) and any(
        isinstance(message, Mapping) and isinstance(message.get("content"), list | tuple) for message in dialogue
    )


def _flattened(row: dict[str, object], name: str, given: Sequence[object]) -> list[object]:
    """Makes the parts of a dialogue texts with marks; returns all images in the order of the marks.

    A part without an image of its own takes the next of the column.
    """
    left, found = list(given), []
    messages = []
    for message in row[name]:  # type: ignore[attr-defined]  # a list, as `_has_parts` saw
        parts = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(parts, list | tuple):
            messages.append(message)
            continue
        text = ""
        for part in parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("text", "input_text") and isinstance(part.get("text"), str):
                text += part["text"]
            elif kind in _PART_KINDS:
                own = _own_image(part)
                if own is None and not left:
                    raise ValueError(f"expected an image for each part of {name!r} that shows one; {IMAGES!r} has too few")
                found.append(left.pop(0) if own is None else own)
                text += MARK
            else:
                raise ValueError(f"expected parts of type text or image in {name!r}, got {str(part)[:80]!r}")
        messages.append({**message, "content": text})
    row[name] = messages
    return [*found, *left]


def _own_image(part: Mapping[str, object]) -> object:
    """What a part brings itself; None = it stands for one of the column."""
    for name in ("image_url", "image", "url", "data"):
        value = part.get(name)
        if value is not None:
            return value.get("url") if name == "image_url" and isinstance(value, Mapping) else value
    return None


def _inline(image: object, place: str, folder: Path | None) -> str:
    """Base64 of one image, however it was given."""
    if isinstance(image, Mapping):
        content, path = image.get("bytes"), image.get("path")
        image = content if content is not None else path
    if isinstance(image, bytes | bytearray | memoryview):
        content = bytes(image)
        return base64.b64encode(_judged(content, place)).decode("ascii")
    if not isinstance(image, str) or not image:
        raise ValueError(
            f"expected bytes, base64 or a path at {place}, got {type(image).__name__}"
            + (": keep the data set's files (Image(decode=False)), or send bytes" if hasattr(image, "tobytes") else "")
        )
    if image.startswith("data:"):
        header, comma, text = image.partition(",")
        if not comma or not header.endswith(";base64"):
            raise ValueError(f"expected a data URL in base64 at {place}, got {image[:40]!r}")
        return _checked(text, place)
    if image.startswith(("http://", "https://", "s3://", "gs://")):
        raise ValueError(f"expected an image at {place}, got the address {image[:80]!r}: nothing is fetched; send its bytes")
    try:
        return _checked(image, place)
    except ValueError as error:
        if len(image) > 4096:
            raise
        if folder is None:
            raise ValueError(f"{error}; if it is a path: those are read of rows in a file only; send the bytes") from None
    return base64.b64encode(_judged(_of_path(image, place, folder), place)).decode("ascii")


def _of_path(path: str, place: str, folder: Path) -> bytes:
    """A file below a folder, and nowhere else."""
    root = folder.resolve()
    try:
        target = (root / path).resolve()
        if Path(path).is_absolute() or not target.is_relative_to(root):
            raise ValueError(f"expected a path below {folder} at {place}, got {path[:200]!r}: images of rows lie beside their file")
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the image {path[:200]!r} at {place} cannot be read: {error.strerror}") from error


def _checked(text: str, place: str) -> str:
    """The same base64, of an image that is one."""
    _of_base64(text, place)
    return text


def _of_base64(text: object, place: str) -> bytes:
    if not isinstance(text, str):
        raise BadImage(f"expected base64 at {place}, got {type(text).__name__}")
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise BadImage(f"an image at {place} of about {len(text) * 3 // 4:,} bytes: at most {MAX_BYTES:,} are taken; scale it down")
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise BadImage(f"expected base64 at {place}, got {text[:40]!r}: {error}") from error
    return _judged(content, place)


def _judged(content: bytes, place: str) -> bytes:
    try:
        image_kind(content)
    except BadImage as error:
        raise BadImage(f"{place}: {error}") from error
    return content


__all__ = ["IMAGES", "MARK", "MAX_IMAGES", "images_in", "with_inline_images"]
