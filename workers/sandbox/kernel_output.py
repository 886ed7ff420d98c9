"""What one cell shows, collected from its messages under a bound."""

from __future__ import annotations

import base64
import contextlib
import re
import struct
from collections.abc import Mapping
from typing import Any

from pipeline.blobs.images import MAX_BYTES, image_kind
from workers.sandbox.capture import HeadTail
from workers.sandbox.terminal_text import plain_text, valid_utf8

TEXT_TYPES = ("text/plain", "text/markdown", "text/latex")
NAMELESS = re.compile(r"<IPython\.core\.display\.\w+ object>")
"""What plain text says of a display that is only meant to be seen; a text that can be read says more."""
RESULT_BYTES = 64 * 1024
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
PNG_START = 32
"""Characters of base64 that hold a PNG's signature and its size."""


class CellOutput:
    """Takes the messages of one cell in the order they come."""

    def __init__(self, max_output_bytes: int, max_images: int = 0) -> None:
        self._shown = HeadTail(max_output_bytes)
        self._max_images = max_images
        self.images: list[bytes] = []
        """Files of the first images that were displayed, at most `max_images`."""
        self._stdout = HeadTail(max_output_bytes)
        self._ends_line = True
        self.result: str | None = None
        self.error_name = ""
        self.error_text = ""
        self.cwd = ""

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """Takes the content of an output message; kinds that show nothing are ignored."""
        if kind == "stream":
            text = str(content.get("text", ""))
            if content.get("name") == "stdout":
                self._stdout.feed(_bytes(text))
            self._show(text)
        elif kind == "execute_result":
            text, note = self._readable(content.get("data", {}))
            bounded = HeadTail(RESULT_BYTES)
            bounded.feed(_bytes(text))
            self.result = bounded.text()
            self._show_block(text, note)
        elif kind in ("display_data", "update_display_data"):
            self._show_block(*self._readable(content.get("data", {})))
        elif kind == "error":
            self._take_error(content)

    def take_reply(self, content: Mapping[str, Any]) -> None:
        """Takes what only the reply says: pages of help, and an error whose own message was lost because it could not be encoded."""
        for payload in content.get("payload") or ():
            if payload.get("source") == "page":
                self._show_block(*self._readable(payload.get("data", {})))
        if content.get("status") == "error" and not self.error_name:
            self._take_error(content)
        self.cwd = valid_utf8(str(content.get("cwd") or ""))

    def say(self, text: str) -> None:
        """Adds a line of our own."""
        self._show_block(text, "")

    @property
    def shown(self) -> str:
        return plain_text(self._shown.text())

    @property
    def stdout(self) -> str:
        return self._stdout.text()

    @property
    def truncated_bytes(self) -> int:
        return self._shown.dropped_bytes

    def _take_error(self, content: Mapping[str, Any]) -> None:
        self.error_name = valid_utf8(str(content.get("ename", "")))
        lines = content.get("traceback") or [f"{self.error_name}: {content.get('evalue', '')}"]
        self.error_text = plain_text(valid_utf8("\n".join(map(str, lines))))
        self._show_block(self.error_text, "")

    def _readable(self, data: Mapping[str, Any]) -> tuple[str, str]:
        """The text of a display, and a note of what of it is shown otherwise or cannot be read."""
        if not self._max_images:
            return _readable(data)
        forms = (self._image(data[kind]) for kind in IMAGE_TYPES if kind in data)
        shown = next(filter(None, forms), "")  # one display, one image, in the first form that is one
        if not shown:
            return _readable(data)
        text, note = _readable({kind: value for kind, value in data.items() if kind not in IMAGE_TYPES})
        return text, "\n".join(filter(None, (note, shown)))

    def _image(self, content: object) -> str:
        """Takes an image; what is said in its place, or nothing where it is not shown."""
        if len(self.images) == self._max_images or not isinstance(content, str) or len(content) > MAX_BYTES * 4 // 3 + 1024:
            return ""
        try:
            file = base64.b64decode(content)
            kind = image_kind(file)
        except ValueError:
            return ""
        self.images.append(file)
        return f"[shown below: {kind}]"

    def _show_block(self, text: str, note: str) -> None:
        for part in (text, note):
            if part:
                self._show(part if self._ends_line else f"\n{part}")
                self._show("\n")

    def _show(self, text: str) -> None:
        if text:
            self._shown.feed(_bytes(text))
            self._ends_line = text.endswith("\n")


def _readable(data: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a display, and a note of what of it cannot be read."""
    texts = [str(data[kind]) for kind in TEXT_TYPES if kind in data]
    if len(texts) > 1 and NAMELESS.fullmatch(texts[0]):
        del texts[0]
    unseen = [f"{kind}, {_size(kind, data[kind])}" for kind in data if kind.startswith(("image/", "audio/", "video/"))]
    if not texts and not unseen and data:
        unseen = [", ".join(data)]
    return valid_utf8(texts[0]) if texts else "", f"[not shown: {'; '.join(unseen)}]" if unseen else ""


def _size(kind: str, content: object) -> str:
    """Of what is not text, which comes as base64: its bytes, and of a PNG its width and height."""
    text = str(content)
    if kind == "image/svg+xml":
        return f"{len(text):,} characters"
    with contextlib.suppress(ValueError):
        start = base64.b64decode(text[:PNG_START], validate=True)
        n_bytes = len(text.rstrip("=\n")) * 3 // 4
        if kind == "image/png" and start[:8] == b"\x89PNG\r\n\x1a\n" and len(start) == 24:
            width, height = struct.unpack(">II", start[16:24])
            return f"{width} x {height}, {n_bytes:,} bytes"
        return f"{n_bytes:,} bytes"
    return f"{len(text):,} characters"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
