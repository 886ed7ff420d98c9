"""Earlier attempts of a job, as its hash has them (`was.<attempt>`, written when an attempt ended short of what its stage makes)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ops.visible_text import visible_line

FIELD = "was."
ENDED = {
    "failed": "failed",
    "lost": "was lost",
    "back": "was handed back",
    "dead": "failed for good",
    "salvaged": "was lost, and its turns kept",
    "node_gone": "was lost with its node",
}
"""How an attempt ended, in words. `pipeline/scripts/lib.lua` has who writes them."""
MOST_WHY = 300
"""Characters of a reason that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """One of them."""

    number: int
    stage: str
    how: str
    """A key of `ENDED`; another one of a newer worker's script."""
    began_ms: int
    """By the clock of Redis, as the next."""
    ended_ms: int
    worker: str
    why: str

    def line(self) -> str:
        """For a person."""
        began = datetime.fromtimestamp(self.began_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
        took_s = max(0, self.ended_ms - self.began_ms) / 1000
        why = f": {self.why[:MOST_WHY]}" if self.why else ""
        by = f" by {self.worker}" if self.worker else ""
        return visible_line(
            f"{began}  attempt {self.number}, {self.stage.upper()}{by}, {ENDED.get(self.how, self.how)} after {took_s:.2f} s{why}"
        )


def earlier_attempts(header: Mapping[str, str]) -> tuple[EarlierAttempt, ...]:
    """Those that a job's hash knows, in order; what is no attempt is left out."""
    found = []
    for name, value in header.items():
        words = value.split("|", 5)
        if not name.startswith(FIELD) or len(words) < 6 or not all(word.isdigit() for word in (name.removeprefix(FIELD), *words[2:4])):
            continue
        stage, how, began, ended, own, why = words
        found.append(
            EarlierAttempt(
                number=int(name.removeprefix(FIELD)),
                stage=stage,
                how=how,
                began_ms=int(began),
                ended_ms=int(ended),
                worker=own.rpartition("#")[0] or own,
                why=why,
            )
        )
    return tuple(sorted(found, key=lambda attempt: attempt.number))
