"""What the troubles of a pipeline come to. Loads little: who cannot reach Redis is told at once."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.status.trouble import Trouble, Unreached
from pipeline.messages import Json


class Verdict(StrEnum):
    """In one word."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Something is wrong, and work gets on."""
    STOPPED = "stopped"
    """Nothing that should get on does."""
    UNREACHABLE = "unreachable"
    """Nothing is known."""

    @property
    def exit_code(self) -> int:
        """Of `rollstream status`."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and what it comes from."""

    verdict: Verdict
    troubles: Sequence[Trouble]
    """The first one is the one to mend first."""
    summary: str
    """Of a healthy pipeline."""

    def as_map(self) -> Json:
        """For programs."""
        first = self.troubles[0] if self.troubles else None
        return {
            "verdict": self.verdict.value,
            "exit_code": self.verdict.exit_code,
            "cause": first.cause if first else "",
            "why": first.what if first else self.summary,
            "next": command_line(first.next) if first else "",
            "causes": [
                {
                    "cause": trouble.cause,
                    "why": trouble.what,
                    "next": command_line(trouble.next),
                    "run": trouble.run,
                    "blocking": trouble.is_blocking,
                }
                for trouble in self.troubles
            ],
        }

    @property
    def first_line(self) -> str:
        """Verdict, cause, what was seen, next command."""
        if not self.troubles:
            return f"{self.verdict} · {self.summary}"
        first = self.troubles[0]
        return f"{self.verdict} · {first.cause} · {one_line(first.what)} · next: {command_line(first.next)}"


def unreached(error: Unreached) -> Judgement:
    """The verdict on a pipeline that cannot be looked at."""
    return Judgement(verdict=Verdict.UNREACHABLE, troubles=(error.trouble,), summary="")


def one_line(text: str) -> str:
    """Text that others wrote, without what would break a line or a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def command_line(words: Sequence[str]) -> str:
    """A command as it is typed."""
    return one_line(shlex.join(words))
