"""How many jobs of one (run, model) may act in this process: a limit that follows the pressure of the run's servers. Pure, no clock.

Each RUN process has such a limit of its own and sees the same facts (ADR 15). Invariants:

  1. `low <= limit <= high`, always. It begins at `high`, what ops allowed: a process that never hears of its servers works as if this
     were switched off.
  2. No news is no change: old facts, a paused run or no usable server hold the limit, and what was seen before they came counts no more.
  3. One cause is not punished twice: a cut is followed by no other until it has taken effect, that is until no more jobs act than it
     allows, and a few seconds more. Only a first cut that was far too small is corrected before, from what acts then.
  4. The limit grows only while it is used up, nothing is under pressure, and the KV cache is below the mark where it is left alone.
  5. The gain of a process is its part, by its bound, of what the whole run may grow; its cut is a share of what it has. So all processes
     together grow no faster the more they are, and come to limits in proportion to their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

LOOKS_OF_QUEUE = 3
"""So many looks in a row with a queue are pressure; calls that have just arrived stand in line for a moment anywhere."""
QUEUE_SHARE = 0.1
"""Calls in line to calls that run, above which a line is a queue: a short one keeps the engine busy."""
SMOOTHING = 0.2
"""Weight of a new look in what is known of a queue."""
KV_FULL = 0.9
"""Share of the KV cache above which growing contexts are about to preempt each other."""
KV_AMPLE = 0.8
"""Below this the limit may grow; between the two it is left alone."""
KV_GOAL = 0.8
"""A cut aims at this share, as if each job held an equal part."""
DEEPEST_QUEUE_CUT, LEAST_QUEUE_CUT = 0.25, 0.9
"""What runs is what a server can carry, so a queue says how much is too much; within these bounds."""
PRESSED_SHARE = 0.25
"""Share of the servers under pressure at which the limit falls; below it is one server's trouble, for the routing to solve."""
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 5.0, 60.0
"""Bounds of the time in which a cut shows, which is that of a call."""
FAR_OFF = 0.8
"""While a cut does not show yet, the limit falls again only where it is below this part of what acts, and what the servers can carry of
that is below this part of the limit: the first cuts of a start with far too much."""
GAIN = 0.1
"""Of all limits of the run, in the time of a call."""
FAST_GAIN = 1 / 8
"""Of all limits of the run, a look, while more servers came and none has been under pressure since."""
STEEPEST_GAIN = 1.0
"""Places a look, but for the fast one."""
STALE_S = 5.0
"""Facts older than this are no news; servers are looked at each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """What the last look at one usable server of the run saw; usable = up, alive, with weights that the run allows."""

    server: str
    running: int
    waiting: int
    kv: float
    """Share of the KV cache in use; -1 = it does not say."""
    age_s: float
    """Since it answered a look; infinite when it never did."""


@dataclass(frozen=True, slots=True)
class Change:
    """The limit moved."""

    before: int
    after: int
    cause: str
    """`queue`, `kv` or `servers` (fewer) when it falls, `calm` or `servers` (more) when it grows."""


@dataclass(frozen=True, slots=True)
class Everybody:
    """The processes that serve the run, this one among them."""

    limits: int
    """Sum of their limits."""
    bounds: int
    """Sum of their `high`."""


@dataclass(slots=True)
class _Line:
    """What is known of one server's line."""

    looks: int = 0
    """In a row at which it was a queue."""
    waiting: float = 0.0
    running: float = 0.0


class ConcurrencyLimit:
    """The limit of one process for one (run, model).

    Args:
        low: bound from below, at least 1.
        high: bound from above.
    """

    def __init__(self, low: int, high: int) -> None:
        if not 1 <= low <= high:
            raise ValueError(f"expected 1 <= low <= high, got {low} and {high}")
        self.low, self.high = low, high
        self._value = float(high)
        self._no_cut_until_s = self._no_gain_until_s = -math.inf
        self._servers = 0
        self._grows_fast = False
        self._lines: dict[str, _Line] = {}

    @property
    def places(self) -> int:
        """Jobs that may act."""
        return int(self._value + 1e-9)

    def look(
        self,
        now_s: float,
        loads: Sequence[ServerLoad],
        *,
        used: int,
        call_s: float,
        everybody: Everybody | None = None,
        is_paused: bool = False,
    ) -> Change | None:
        """Takes one look at the servers into account.

        Args:
            now_s: by a monotonic clock.
            loads: the usable servers of the run and model.
            used: jobs that act here.
            call_s: how long a call has taken lately.
            everybody: None = nobody else is known of.
            is_paused: the run's calls are held by its trainer.
        """
        before = self.places
        fresh = [load for load in loads if load.age_s <= STALE_S]
        if is_paused or not fresh:
            self._lines.clear()
            return None
        cause = self._follow_servers(len(loads))
        found = {load.server: self._judge(load) for load in fresh}
        self._forget_others(found)
        n_pressed = sum(factor < 1.0 for factor, _ in found.values())
        if n_pressed and n_pressed >= PRESSED_SHARE * len(fresh):
            window_s = min(LONGEST_WINDOW_S, max(SHORTEST_WINDOW_S, call_s))
            self._grows_fast = False
            self._no_gain_until_s = now_s + window_s
            factor = sum(factor for factor, _ in found.values()) / len(fresh)
            if used > before:
                self._no_cut_until_s = now_s + SHORTEST_WINDOW_S
                if before < FAR_OFF * used and factor * used < FAR_OFF * self._value:
                    self._value = factor * used
            elif now_s >= self._no_cut_until_s:
                self._value *= factor
                self._no_cut_until_s = now_s + (SHORTEST_WINDOW_S if min(found.values())[1] == "queue" else window_s)
                self._lines.clear()
            if self._value < before:
                cause = min(found.values())[1]
        elif not n_pressed and used >= before and now_s >= self._no_gain_until_s and _mean_kv(fresh) < KV_AMPLE:
            self._value += self._gain(call_s, everybody or Everybody(before, self.high))
            cause = cause or ("servers" if self._grows_fast else "calm")
        self._value = min(float(self.high), max(float(self.low), self._value))
        return Change(before, self.places, cause) if self.places != before else None

    def _follow_servers(self, count: int) -> str:
        """Fewer servers carry fewer jobs; how many more a new one carries is found out fast."""
        known, self._servers = self._servers, count
        if not known or count == known:
            return ""
        self._grows_fast = count > known
        if count > known:
            return ""
        self._value *= count / known
        return "servers"

    def _judge(self, load: ServerLoad) -> tuple[float, str]:
        """What should be left of the limit if all servers were as this one, and why."""
        line = self._lines.setdefault(load.server, _Line())
        line.waiting += SMOOTHING * (load.waiting - line.waiting)
        line.running += SMOOTHING * (load.running - line.running)
        line.looks = line.looks + 1 if load.waiting > QUEUE_SHARE * load.running else 0
        found = [(1.0, "")]
        if load.kv >= KV_FULL:
            found.append((KV_GOAL / load.kv, "kv"))
        if line.looks >= LOOKS_OF_QUEUE:
            # a line that gets shorter is the effect of a cut before; one that got longer just now may be chance
            carried = max(
                running / (running + waiting) for running, waiting in ((line.running, line.waiting), (load.running, load.waiting))
            )
            found.append((min(LEAST_QUEUE_CUT, max(DEEPEST_QUEUE_CUT, carried)), "queue"))
        return min(found)

    def _forget_others(self, kept: Collection[str]) -> None:
        for server in [*self._lines]:
            if server not in kept:
                del self._lines[server]

    def _gain(self, call_s: float, everybody: Everybody) -> float:
        part = self.high / max(self.high, everybody.bounds)
        limits = max(self.places, everybody.limits)
        if self._grows_fast:
            return max(1.0, FAST_GAIN * limits) * part
        return min(STEEPEST_GAIN, max(1.0, GAIN * limits) * part / max(1.0, call_s))


def _mean_kv(loads: Sequence[ServerLoad]) -> float:
    said = [load.kv for load in loads if load.kv >= 0]
    return sum(said) / len(said) if said else 0.0
