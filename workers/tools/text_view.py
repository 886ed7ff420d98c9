"""How files and folders are shown to a model: numbered lines under a bound, trees two levels deep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workers.sandbox.results import FileEntry

LONGEST_LINE = 2000
"""Characters of one line that are shown: minified code and data have lines of megabytes."""
AROUND = 4
"""Lines shown before and after an edit."""


def numbered(lines: Sequence[str], first: int, last: int, max_bytes: int) -> tuple[str, int]:
    """Lines `first` to `last` with their numbers, a tab between, as `cat -n` has it; and the last that found room."""
    shown: list[str] = []
    room = max_bytes
    for number in range(first, last + 1):
        line = lines[number - 1]
        if len(line) > LONGEST_LINE:
            line = f"{line[:LONGEST_LINE]} [{len(line) - LONGEST_LINE:,} more characters in this line]"
        shown.append(f"{number:6}\t{line}")
        room -= len(shown[-1].encode("utf-8", "replace")) + 1
        if room < 0 and len(shown) > 1:
            shown.pop()
            break
    return "\n".join(shown), first + len(shown) - 1


def around(lines: Sequence[str], first: int, last: int, max_bytes: int) -> str:
    """The lines of an edit and some before and after it."""
    if not lines:
        return "(the file is empty now)"
    first, last = max(1, min(first, len(lines)) - AROUND), min(len(lines), max(first, last) + AROUND)
    text, shown = numbered(lines, first, last, max_bytes)
    return text if shown == last else f"{text}\n[and {last - shown:,} lines more]"


def tree_lines(folder: str, entries: Iterable[FileEntry], indent: str = "") -> list[tuple[str, str]]:
    """A line for each entry that is not hidden, and the path of each that is a folder (else empty)."""
    lines = []
    for entry in entries:
        if not entry.name.startswith("."):
            is_folder = entry.kind == "folder"
            mark = {"folder": "/", "link": " (link)", "other": " (no regular file)"}.get(entry.kind, "")
            lines.append((f"{indent}{entry.name}{mark}", f"{folder.rstrip('/')}/{entry.name}" if is_folder else ""))
    return lines
