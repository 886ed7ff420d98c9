"""What a program that a test kills did, for whoever comes after it: a line each."""

from __future__ import annotations

from pathlib import Path


class Diary:
    """A file of lines. One short append is one write, so a line is whole or not there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, *words: object) -> None:
        """Adds a line."""
        with self._path.open("a", encoding="ascii") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, what: str = "") -> list[list[str]]:
        """The words of each line; with `what`, of those that begin with it."""
        text = self._path.read_text(encoding="ascii") if self._path.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [line for line in found if not what or line[0] == what]
