"""A file as text that can be edited and written back without changing what was not edited.

What an edit leaves alone stays byte for byte: line ends (LF, CRLF, or both in one file), a missing line end at the end, tabs, a byte order
mark, and the bytes of an old one-byte encoding. Lines end at LF only: form feeds and Unicode separators are characters of a line, as they
are to `grep -n` and to compilers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

BOM = "\ufeff"
MAX_CONTROL_SHARE = 0.02
"""Of characters that no text has; what is not UTF-8 and has more is not text in any encoding."""
_CONTROL = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_CRLF = re.compile("\r\n")


class NotText(Exception):
    """Bytes that cannot be shown or edited as text; the message says what they look like."""


class NotEncodable(Exception):
    """New text that cannot be written in the file's encoding; the message says which character."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """The content of one file."""

    text: str
    """With its own line ends, without a byte order mark."""
    encoding: Literal["utf-8", "latin-1"] = "utf-8"
    """`latin-1` stands for every one-byte encoding: each byte is a character, and goes back as that byte."""
    has_bom: bool = False

    @classmethod
    def of(cls, content: bytes) -> TextFile:
        """Reads bytes.

        Raises:
            NotText: they are something else.
        """
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise NotText("it is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
        if b"\0" in content:
            raise NotText("it is binary")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
            if len(_CONTROL.findall(text)) > MAX_CONTROL_SHARE * len(text):
                raise NotText("it is binary") from None
            return cls(text, "latin-1")
        return cls(text.removeprefix(BOM), has_bom=text.startswith(BOM))

    def encoded(self, text: str) -> bytes:
        """Other text as bytes of this file.

        Raises:
            NotEncodable: a character is not in its encoding.
        """
        try:
            return (BOM + text if self.has_bom else text).encode(self.encoding)
        except UnicodeEncodeError as error:
            bad = error.object[error.start]
            if self.encoding == "utf-8":
                raise NotEncodable(f"the text holds {bad!a}, which is no character") from None
            raise NotEncodable(f"the file is not UTF-8 and its encoding may not have {bad!r}; convert it first: iconv -t UTF-8") from None

    @property
    def line_end(self) -> str:
        """The more frequent one."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf and 2 * crlf >= self.text.count("\n") else "\n"

    @property
    def lines(self) -> list[str]:
        """Without their ends; an empty file has none."""
        lines = self.text.replace("\r\n", "\n").split("\n")
        return lines[:-1] if not lines[-1] else lines

    @property
    def ends_line(self) -> bool:
        """Whether what is appended begins a line of its own."""
        return not self.text or self.text.endswith("\n")

    def replaced(self, start: int, end: int, new: str) -> str:
        """The text with a stretch replaced; places count in the text as the model sees it, with LF alone, and so is `new` written."""
        places = [found.start() - before for before, found in enumerate(_CRLF.finditer(self.text))]
        start, end = start + bisect_left(places, start), end + bisect_left(places, end)
        taken = self.text[start:end]
        line_end = self.line_end if "\n" not in taken else "\r\n" if "\r\n" in taken else "\n"
        return self.text[:start] + new.replace("\n", line_end) + self.text[end:]
