"""The documents as tests read them: their fenced blocks, links, tables and the commands they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.conftest import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
ROW = re.compile(r"^\| (.+?) \|", re.MULTILINE)


def documents() -> list[Path]:
    """Everything a person may read."""
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").rglob("*.md"))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    document: Path
    language: str
    text: str

    @property
    def place(self) -> str:
        """The document as a test's id names it."""
        return str(self.document.relative_to(ROOT))


def blocks(*documents: Path) -> Iterator[Block]:
    """Fenced blocks, in order."""
    for document in documents:
        for language, text in FENCE.findall(document.read_text(encoding="utf-8")):
            yield Block(document, language, text)


def prose(document: Path) -> str:
    """The text without its fenced blocks."""
    return FENCE.sub("", document.read_text(encoding="utf-8"))


def shown_commands(program: str) -> list[tuple[str, list[str]]]:
    """Each command line in a fenced block that runs `program`, with its document: the words after it.

    Variables before it, a prompt (`$ `), a `.venv/bin/` path and what follows it in the shell (`&&`, `#`) are no part of it.
    """
    found = []
    for block in blocks(*documents()):
        if block.language in ("python", "toml"):
            continue
        for line in block.text.splitlines():
            for part in line.removeprefix("$ ").split(" && "):
                command = re.sub(r"^((\w+=\S+ )|(\.venv/bin/))*", "", part.strip())
                if command == program or command.startswith(program + " "):
                    found.append((block.place, shlex.split(command, comments=True)[len(program.split()) :]))
    return found


def section(document: Path, heading: str) -> str:
    """The part of a document under one heading, up to the next of the same or a higher level."""
    text = document.read_text(encoding="utf-8")
    start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert start is not None, f"{document}: no heading {heading!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def listed_failpoints() -> list[str]:
    """The names of failpoints on their page."""
    rows = cells(section(ROOT / "docs/reference/failpoints.md", "Failpoints"))
    return [name for row in rows if row[0] != "who passes it" for name in row[1].split()]


def first_column(text: str) -> list[str]:
    """Names in code style in the first column of the tables of a text, in order; a cell may hold several."""
    return [name for cell in ROW.findall(text) for name in INLINE.findall(cell)]


def cells(text: str) -> Iterator[list[str]]:
    """Rows of the tables of a text as cells, without code style."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
