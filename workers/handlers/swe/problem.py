"""What a row of any data set comes to: a repository, what is wrong with it, and how a repair is tested."""

from __future__ import annotations

from dataclasses import dataclass

from workers.graders.swe.evaluate import SweTests
from workers.graders.swe.repository import RepositorySource


@dataclass(frozen=True, slots=True, kw_only=True)
class SweProblem:
    """One repair."""

    statement: str
    source: RepositorySource
    tests: SweTests
    image: str = ""
    """Empty = the node's own programs."""
    gold: bytes | None = None
    """The reference repair as a patch; None = the row holds none."""
    is_offline: bool = False
    """Whether steps of the image's own set-up must not try to reach package registries."""
