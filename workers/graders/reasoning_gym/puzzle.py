"""A puzzle, as both sides of the pipe to the scoring process know it. Nothing here imports `reasoning_gym`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

Entry = Mapping[str, Any]
"""As the package makes it: question, answer (None for a few data sets) and metadata."""

_REFERENCES = ("example_answer", "example_correct_answer", "possible_answer")
"""Where the metadata hold a right answer when the entry has none."""


class BadPuzzle(ValueError):
    """No such data set, settings that are none of its own, or an entry that it cannot make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One puzzle: `entry`, or how the package makes it."""

    dataset: str
    """Its name in the package."""
    config: Mapping[str, Any] = field(default_factory=dict)  # of the data set, as JSON
    """Without seed. Of a puzzle with an entry: what its scorer reads of it."""
    seed: int = 0
    index: int = 0
    entry: Entry | None = None

    def to_map(self) -> dict[str, Any]:
        """For the pipe."""
        said: dict[str, Any] = {"dataset": self.dataset, "config": dict(self.config), "seed": self.seed, "index": self.index}
        return {**said, "entry": self.entry}


def reference_of(entry: Entry) -> str | None:
    """A right answer; None when the entry holds none."""
    metadata = entry.get("metadata")
    found = entry.get("answer")
    if found is None and isinstance(metadata, Mapping):
        found = next((metadata[name] for name in _REFERENCES if metadata.get(name) is not None), None)
    return found if found is None or isinstance(found, str) else json.dumps(found)


def digest_of(entry: Entry) -> str:
    """The same for the same puzzle, in every process."""
    return blake2b(json.dumps(entry, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
