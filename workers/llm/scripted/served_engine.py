"""What the routes of a wire ask of the engine behind them, whatever its tokens come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from pipeline.engines.control import PauseMode
from workers.llm.scripted.call import Call, Output


class CachedPrefixes(Protocol):
    """What of prompts was computed before."""

    @property
    def queries(self) -> int:
        """Tokens asked for."""
        ...

    @property
    def hits(self) -> int:
        """Tokens found."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class ServedEngine(Protocol):
    """An engine, as a server sees it. All of it is called on one event loop."""

    @property
    def cache(self) -> CachedPrefixes:
        """Its prefix cache; one that keeps none finds nothing."""
        ...

    @property
    def paused(self) -> PauseMode | None:
        """How it was paused; None = it samples."""
        ...

    @property
    def version(self) -> str:
        """The label of its weights."""
        ...

    @property
    def finished(self) -> Counter[str]:
        """Ended calls by how they ended."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts so far."""
        ...

    @property
    def generation_tokens(self) -> int:
        """Sampled so far."""
        ...

    @property
    def kv_used(self) -> float:
        """Share of its room for keys and values that calls hold, 0 to 1."""
        ...

    @property
    def n_running(self) -> int:
        """Calls that hold a place."""
        ...

    @property
    def n_waiting(self) -> int:
        """Calls in line."""
        ...

    def request_ids(self) -> list[str]:
        """Of all calls that have not ended."""
        ...

    async def run(self, call: Call) -> Output:
        """Sample."""
        ...

    def abort(self, request_ids: Sequence[str], *, accepted_only: bool = False) -> None:
        """End calls by their full ids."""
        ...

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop sampling."""
        ...

    def resume(self) -> None:
        """Sample again."""
        ...

    def flush(self) -> None:
        """Forget cached prefixes, and during a pause what was computed for calls that stand."""
        ...

    def set_version(self, version: str) -> None:
        """Label the weights."""
        ...

    def load(self, weights: str) -> None:
        """Take other weights.

        Raises:
            BadRequestError: they cannot be taken; those that it has stay.
        """
        ...
