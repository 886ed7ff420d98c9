"""One call of the scripted engine: what was asked, when its tokens come out, and what it gave.

The ids of a call are settled when it starts; the time that it has been sampling says how many of them are out. A label or weights that
come meanwhile leave a mark at that number, and from the marks alone follow the version of each token and what makes its logprob.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.messages import Sampling
from workers.llm.backend import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request as the engine takes it; ids and numbers have been checked."""

    request_id: str
    """The server's own, prefix included."""
    prompt_ids: Sequence[int]
    sampling: Sampling
    """`max_tokens` is the budget, cut to the context already."""
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    cache_salt: str | None = None
    allowed_token_ids: tuple[int, ...] = ()
    script: tuple[int, ...] | None = None
    """Ids to say, instead of asking the policy."""
    delay_s: float | None = None
    """Time of each token, instead of the server's latency."""
    scores_prompt: bool = False
    """Whether the logprobs of the prompt's own tokens are wanted."""
    scored_ids: tuple[int, ...] = ()
    """Tokens whose logprobs are wanted at each place beside that of the sampled one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a call gave."""

    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_reason: int | str | None
    spans: list[tuple[str, int, int]]
    """Version, start, end."""
    cached_tokens: int
    prompt_logprobs: list[float] | None = None
    """Of the prompt's tokens but the first, raw whatever the mode, as in vLLM; None = not asked for."""
    scored: list[dict[int, float]] | None = None
    """At each place the tokens asked for and their logprobs."""


class Seat:
    """A call in the line (`line.py`)."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.changed = asyncio.Event()
        """Set when something is new for it: its place, an abort, a pause."""
        self.accepted = False
        """Past the gate that a pause closes."""
        self.placed = False
        self.aborted = False


class Running(Seat):
    """A call in flight: its ids, when each comes out, and how long it has been sampling."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.ids: list[int] = []
        self.finish: Finish = "length"
        self.stop_reason: int | str | None = None
        self.marks: list[tuple[int, str, str]] = []
        """Tokens that were out when a label came, the label, and what then made logprobs."""
        self._weights = ""
        self._kept: str | None = None
        """Older weights whose keys and values this call still builds on."""
        self._times = np.zeros(0)
        self._active_s = 0.0
        self._running_since: float | None = None

    def start(
        self, said: tuple[list[int], Finish, int | str | None], times: np.ndarray, now: float, label: str, weights: str, kept: str | None
    ) -> None:
        """Sample from `now` on.

        Args:
            said: the ids, and why they end.
            times: seconds of sampling after which each id is out.
            kept: weights of the prefix that was found in the cache, if one was.
        """
        self.ids, self.finish, self.stop_reason = said
        self._times, self._running_since, self._weights, self._kept = times, now, weights, kept
        self._mark(label, now)

    def freeze(self, now: float) -> None:
        """No token comes out until it is thawed."""
        self._active_s, self._running_since = self._active(now), None

    def thaw(self, now: float) -> None:
        """Go on, if it had begun."""
        if self.marks:
            self._running_since = now

    def _active(self, now: float) -> float:
        return self._active_s + (0.0 if self._running_since is None else now - self._running_since)

    def tokens_out(self, now: float) -> int:
        """How many ids are out."""
        return int(np.searchsorted(self._times, self._active(now), side="right"))

    def left_s(self, now: float) -> float:
        """Seconds of sampling until the last id is out."""
        return float(self._times[-1]) - self._active(now) if len(self._times) else 0.0

    def change(self, label: str, weights: str, now: float, *, recomputed: bool) -> None:
        """Another label, or other weights. What was computed for the call before is kept unless a pause cleared it."""
        if self.marks:
            if weights != self._weights:
                self._kept, self._weights = None if recomputed else self._kept or self._weights, weights
            self._mark(label, now)

    def _mark(self, label: str, now: float) -> None:
        out = self.tokens_out(now) if self.marks else 0
        if self.marks and self.marks[-1][0] == out:
            self.marks.pop()
        weights, kept = self._weights, self._kept
        self.marks.append((out, label, weights if kept is None or kept == weights else f"{weights} over {kept}"))
