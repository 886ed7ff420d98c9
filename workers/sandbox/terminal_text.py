"""Makes what a terminal would have shown into plain text a model can read.

Cheap and linear, no screen is emulated: escape sequences go, of a line that rewrites itself (progress bars) the last state stays.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and the other strings: titles, links
    r"|\x1b[ -/]*[0-~]"  # all short ones
    r"|\x1b"  # and what begins none, in noise
)
_LINE_END = re.compile(r"\r+\n")


def plain_text(shown: str) -> str:
    """Drops terminal sequences and keeps the last state of each rewritten line."""
    if "\x1b" in shown:
        shown = _ESCAPES.sub("", shown)
    if "\r" in shown:
        shown = _LINE_END.sub("\n", shown)
        if "\r" in shown:
            shown = "\n".join(_last_state(line) if "\r" in line else line for line in shown.split("\n"))
    if "\b" in shown:
        shown = _without_backspaces(shown)
    return shown


def valid_utf8(text: str) -> str:
    """Writes lone surrogates as escapes, so that the text can be encoded by whoever gets it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _without_backspaces(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept and kept[-1] != "\n":
            kept.pop()
    return "".join(kept)
