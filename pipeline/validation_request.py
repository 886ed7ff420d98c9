"""What a validation asks for, checked before anything is sent."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import orjson
from pydantic import BeforeValidator, Field

from pipeline.codec import encode
from pipeline.messages import JobTemplate
from pipeline.prompts import PromptMap
from pipeline.request_errors import shown
from pipeline.requests import VERSION, TemplateRequest

MOST_ROWS = 100_000
PINNED = "pinned"


def _rows(given: object) -> object:
    """Rows of a data set, in order; what is no data set is left to the check of the type."""
    if isinstance(given, str | bytes | Mapping):
        raise ValueError(f"expected rows (a list, a data set, an iterable of maps), got one {type(given).__name__}")
    if isinstance(given, Sequence):
        return tuple(given)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return tuple(given[at] for at in range(len(given)))
    if isinstance(given, Iterable):
        return tuple(given)
    raise ValueError(f"expected rows (a list, a data set, an iterable of maps), got {shown(given)}")


class ValidationRequest(TemplateRequest):
    """n samples of each of some prompts, all of which are wanted. Sampling, limits and run seed are its own."""

    prompts: Annotated[Sequence[PromptMap], BeforeValidator(_rows), Field(min_length=1, max_length=MOST_ROWS)]
    """Rows of a data set: maps of plain values."""
    n: int = Field(default=1, ge=1, le=1024)
    """Samples of each prompt."""
    metric: str = Field(default="score", min_length=1, max_length=64)
    """Named part of the reward that is averaged; `score` is the reward itself."""
    threshold: float = 1.0
    """A member passes, as `pass_at` counts, when its score is at least this."""
    max_redraws: int = Field(default=2, ge=0, le=100)
    """How often a member that broke is drawn again, after the retries of each job, before it counts as not valid."""
    version: str = Field(default="", pattern=VERSION)
    """Whose samples count: empty = all, and a mixture says so; `pinned` = those of the version that the run has when it is first asked for;
    else those of the version with this label."""

    @property
    def is_pinned(self) -> bool:
        """Whether only members of one version count."""
        return bool(self.version)

    def template(self) -> JobTemplate:
        """The message. Nothing is trained on what it asks for, so any sampling will do."""
        return replace(super().template(), exact_logprobs=False)

    def prompt_names(self) -> list[str]:
        """Names of the prompts by what is in them, in order: seeds of model calls are made of them, so that the same prompt is sampled
        alike wherever it stands. One that comes again in this request has another name."""
        names, seen = [], Counter[str]()
        for row in self.prompts:
            digest = hashlib.blake2b(orjson.dumps(row, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
            names.append(f"v-{digest}-{seen[digest]}")
            seen[digest] += 1
        return names

    def digest(self) -> str:
        """Equal for requests that ask for the same samples."""
        parts = (encode(self.template()), self.n, self.version, self.prompt_names())
        return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


__all__ = ["PINNED", "ValidationRequest"]
