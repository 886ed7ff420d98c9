"""What a small grader says of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """Right, wrong, or nothing that could be compared; only right scores."""

    kind: Literal["right", "wrong", "unreadable"]
    reason: str
    """Which rule decided, a fixed word: for logs and counters."""

    @property
    def is_right(self) -> bool:
        return self.kind == "right"
