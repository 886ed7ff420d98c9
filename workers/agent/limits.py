"""What ends a trajectory besides the model itself. Pure decisions; the loop acts on them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.messages import Limits, Sampling, StopReason

STUCK_REPEATS = 4
"""Equal turns in a row; three happen to working models that wait for something."""
STUCK_CYCLES = 3
"""Rounds of two turns in alternation."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens the next call may sample, and what it would mean to use them all."""

    max_tokens: int
    when_used: StopReason


def plan_call(
    limits: Limits, sampling: Sampling, *, turns: int, prompt_tokens: int, sampled_tokens: int, sampled_in_turn: int = 0, max_model_len: int
) -> Budget | StopReason:
    """The next call's budget, or why there is none.

    Args:
        turns: turns finished.
        prompt_tokens: length of the next prompt.
        sampled_tokens: sampled in the whole trajectory, `sampled_in_turn` of them in a turn that goes on.
        max_model_len: the server's bound.
    """
    if turns >= limits.max_turns:
        return StopReason.TURNS
    room = min(limits.max_context_tokens, max_model_len) - prompt_tokens
    if room < 1:
        return StopReason.CONTEXT
    left = min(limits.max_sampled_tokens - sampled_tokens, sampling.max_tokens - sampled_in_turn)
    if left < 1:
        return StopReason.TOKENS
    return Budget(min(room, left), StopReason.CONTEXT if room < left else StopReason.TOKENS)


class ActiveTime:
    """Time that counts towards the limit of RUN: all of it, but for stretches that were spent waiting for a slot or a server.

    Args:
        limit_s: active seconds allowed.
        monotonic: the clock.
    """

    def __init__(self, limit_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._since = monotonic()
        self._waited_s = 0.0
        self._waiting = 0
        self._wait_began = 0.0

    @property
    def left_s(self) -> float:
        """Active seconds left; below 0 when overdrawn."""
        now = self._wait_began if self._waiting else self._monotonic()
        return self._limit_s - (now - self._since - self._waited_s)

    @property
    def is_waiting(self) -> bool:
        """Whether it stands now."""
        return self._waiting > 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time inside does not count. May be nested."""
        if not self._waiting:
            self._wait_began = self._monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._waited_s += self._monotonic() - self._wait_began


class StuckDetector:
    """Notices a model that does the same again and again: equal calls with equal answers, or two such turns by turns."""

    def __init__(self) -> None:
        self._turns: deque[Hashable] = deque(maxlen=max(STUCK_REPEATS, 2 * STUCK_CYCLES))

    def is_stuck_after(self, turn: Hashable) -> bool:
        """Note a turn (its calls and their answers) and judge."""
        self._turns.append(turn)
        last = list(self._turns)
        if len(last) >= STUCK_REPEATS and len(set(last[-STUCK_REPEATS:])) == 1:
            return True
        cycle = last[-2 * STUCK_CYCLES :]
        return len(cycle) == 2 * STUCK_CYCLES and len(set(cycle)) == 2 and all(a == b for a, b in zip(cycle, cycle[2:], strict=False))
