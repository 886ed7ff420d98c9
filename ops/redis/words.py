r"""Splits a line typed at the prompt into the words of a command, as people know it from redis-cli.

Words are separated by spaces. In double quotes `\n \r \t \a \b \\ \"` and `\xHH` are escapes, so any bytes can be typed; in single quotes
only `\'` is. A closing quote ends its word: what follows must be a space.
"""

from __future__ import annotations

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "b": b"\b"}
_HEX = frozenset("0123456789abcdefABCDEF")


class UnbalancedQuotes(ValueError):
    """A quote is not closed, or is closed in the middle of a word."""


def split_words(line: str) -> list[bytes]:
    """The words of a line, as bytes; a line without any gives an empty list.

    Raises:
        UnbalancedQuotes: the line is not to be understood.
    """
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at].isspace():
            at += 1
        if at == len(line):
            return words
        word, at = _word(line, at)
        words.append(word)


def _word(line: str, at: int) -> tuple[bytes, int]:
    """The word that begins at `at`, and where it ends."""
    word = bytearray()
    while at < len(line) and not line[at].isspace():
        if line[at] not in "\"'":
            word += line[at].encode(errors="surrogateescape")
            at += 1
            continue
        piece, at = _quoted(line, at + 1, line[at])
        word += piece
        if at < len(line) and not line[at].isspace():
            raise UnbalancedQuotes(f"a space must follow the closing quote, not {line[at]!r}")
    return bytes(word), at


def _quoted(line: str, at: int, quote: str) -> tuple[bytes, int]:
    """What stands up to the closing quote, and the place after it."""
    piece = bytearray()
    while at < len(line):
        if line[at] == quote:
            return bytes(piece), at + 1
        if line[at] == "\\" and at + 1 < len(line):
            escaped, at = _escape(line, at + 1, quote)
            piece += escaped
        else:
            piece += line[at].encode(errors="surrogateescape")
            at += 1
    raise UnbalancedQuotes(f"a closing {quote} is missing")


def _escape(line: str, at: int, quote: str) -> tuple[bytes, int]:
    """What the character after a backslash stands for, and the place after it."""
    letter = line[at]
    if quote == "'":
        return (b"'" if letter == "'" else b"\\" + letter.encode(errors="surrogateescape")), at + 1
    digits = line[at + 1 : at + 3]
    if letter == "x" and len(digits) == 2 and _HEX.issuperset(digits):
        return bytes([int(digits, 16)]), at + 3
    return _ESCAPES.get(letter, letter.encode(errors="surrogateescape")), at + 1
