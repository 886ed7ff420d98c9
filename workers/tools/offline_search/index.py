"""Which documents of a folder match a query, by BM25: words that are rare in the folder count more, and long documents less.

The same query over the same folder gives the same hits in the same order, ties by name.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ENDINGS = frozenset((".md", ".txt"))
MAX_DOCUMENTS = 100_000
MAX_DOCUMENT_BYTES = 4 << 20
PASSAGE_CHARS = 1_200
"""Of a document, around where the most of the query's words stand."""
_K1, _B = 1.2, 0.75
"""How soon more of the same word stops to count, and how much length weighs: the usual values."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document."""

    title: str
    url: str
    text: str


def read_folder(folder: Path) -> list[Document]:
    """The texts of a folder, by name; the title is the first line, the address the path in the folder.

    Raises:
        OSError: there is no such folder, or something in it cannot be read.
        ValueError: it holds no document, too many, or one that is too large.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())
    if not paths or len(paths) > MAX_DOCUMENTS:
        raise ValueError(f"{folder}: expected 1 to {MAX_DOCUMENTS} files that end with {' or '.join(sorted(ENDINGS))}, found {len(paths)}")
    documents = []
    for path in paths:
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            raise ValueError(f"{path}: {size} bytes, at most {MAX_DOCUMENT_BYTES} are read")
        text = path.read_text(encoding="utf-8", errors="replace")
        first = next((line.strip("# \t") for line in text.splitlines() if line.strip("# \t")), path.stem)
        documents.append(Document(title=first, url=path.relative_to(folder).as_posix(), text=text))
    return documents


class Index:
    """Documents by their words."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = list(documents)
        self._lengths: list[int] = []
        self._places: dict[str, dict[int, int]] = defaultdict(dict)
        for number, document in enumerate(self._documents):
            words = Counter(_words(f"{document.title}\n{document.text}"))
            self._lengths.append(words.total())
            for word, count in words.items():
                self._places[word][number] = count
        self._mean_length = max(1.0, sum(self._lengths) / max(1, len(self._lengths)))

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, most: int) -> list[tuple[Document, float, str]]:
        """The best documents, each with its score and the passage that matches best."""
        wanted = sorted(set(_words(query)))
        scores: dict[int, float] = defaultdict(float)
        for word in wanted:
            places = self._places.get(word, {})
            rarity = math.log(1 + (len(self._documents) - len(places) + 0.5) / (len(places) + 0.5))
            for number, count in places.items():
                length = 1 - _B + _B * self._lengths[number] / self._mean_length
                scores[number] += rarity * count * (_K1 + 1) / (count + _K1 * length)
        best = sorted(scores, key=lambda number: (-scores[number], self._documents[number].url))[:most]
        return [(self._documents[number], scores[number], passage(self._documents[number].text, wanted)) for number in best]


def passage(text: str, words: Sequence[str]) -> str:
    """The part of a text in which the most of the words stand; the earliest of those, cut at blanks."""
    if len(text) <= PASSAGE_CHARS:
        return text.strip()
    wanted = set(words)
    hits = [(match.start(), match[0].casefold()) for match in _WORD.finditer(text) if match[0].casefold() in wanted]
    best, best_start, first = 0, 0, 0
    inside: Counter[str] = Counter()
    for start, word in hits:
        inside[word] += 1
        while start - hits[first][0] > PASSAGE_CHARS // 2:
            inside[hits[first][1]] -= 1
            inside += Counter()  # drops what is gone
            first += 1
        if len(inside) > best:
            best, best_start = len(inside), hits[first][0]
    begin = max(0, min(best_start - PASSAGE_CHARS // 4, len(text) - PASSAGE_CHARS))
    cut = text[begin : begin + PASSAGE_CHARS]
    if begin > 0:
        cut = cut.partition(" ")[2] or cut
    if begin + PASSAGE_CHARS < len(text):
        cut = cut.rpartition(" ")[0] or cut
    return cut.strip()


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
