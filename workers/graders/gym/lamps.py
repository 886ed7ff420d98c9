"""A world of our own: a row of lamps, each switch turns its own lamp and its neighbours over, and all have to be put out."""

from __future__ import annotations

import random
import re
from typing import Any

_SWITCH = re.compile(r"\bpress\s+(\d+)", re.IGNORECASE)


class Lamps:
    """`reset` and `step` as GEM and Gymnasium have them.

    The reward of a step is 1 when it puts the last lamp out, else 0. A message without `press N` costs a step as a press does.

    Args:
        lamps: how many; the seed says which are lit.
        max_steps: after as many the episode is cut off.
    """

    def __init__(self, lamps: int = 5, max_steps: int = 12) -> None:
        if not 2 <= lamps <= 64 or max_steps < 1:
            raise ValueError(f"expected 2 to 64 lamps and a step at least, got {lamps} and {max_steps}")
        self._lamps = [False] * lamps
        self._max_steps = max_steps
        self._steps = 0

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Some lamps are lit."""
        self._lamps = [False] * len(self._lamps)
        self._steps = 0
        for switch in solution(len(self._lamps), seed or 0):
            self._press(switch)
        rules = "Each switch turns its own lamp and the lamps beside it over. Put all of them out: say `press N`, one switch a message."
        return f"{rules}\n{self._view()}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Press a switch."""
        self._steps += 1
        found = _SWITCH.findall(action)
        number = int(found[-1]) if found and len(found[-1]) < 4 else 0
        is_one = 1 <= number <= len(self._lamps)
        if is_one:
            self._press(number)
        solved = not any(self._lamps)
        text = self._view() if is_one else f"There is no such switch: say `press N` with N from 1 to {len(self._lamps)}.\n{self._view()}"
        return text, float(solved), solved, not solved and self._steps >= self._max_steps, {}

    def _press(self, number: int) -> None:
        for place in (number - 2, number - 1, number):
            if 0 <= place < len(self._lamps):
                self._lamps[place] = not self._lamps[place]

    def _view(self) -> str:
        lamps = " ".join(f"{number}:{'on' if lit else 'off'}" for number, lit in enumerate(self._lamps, start=1))
        return f"{lamps} ({self._max_steps - self._steps} steps left)"


def solution(lamps: int, seed: int) -> list[int]:
    """Switches that, pressed once each, light what `reset` lights, and so put it out again; never none, and never without an effect."""
    rng = random.Random(seed)
    while True:
        found = sorted(rng.sample(range(1, lamps + 1), rng.randint(1, lamps)))
        if any(sum(abs(place - switch) <= 1 for switch in found) % 2 for place in range(1, lamps + 1)):
            return found
