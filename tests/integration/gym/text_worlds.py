"""Environments of gymnasium written for these tests: `GymSettings.modules` names this module, and the environments' processes import it."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.spaces import Text

SPOKEN = Text(max_length=40, charset=string.ascii_letters + string.digits + " ")
SEEN = Text(max_length=400, charset=string.printable)


class Vault(gymnasium.Env[str, str]):
    """A number to be found; a guess is told whether it was near, and `mode` how it goes wrong on `break`.

    Args:
        breaks_in: an empty folder, in which each break is counted across processes.
        breaks: how often it goes wrong; then `break` is a guess like another.
        resets_until: how many breaks `reset` outlives.
    """

    def __init__(
        self,
        highest: int = 20,
        mode: str = "",
        breaks_in: str = "",
        breaks: int = 99,
        resets_until: int = 99,
        render_mode: str | None = None,
    ) -> None:
        self._broken = Path(breaks_in) if breaks_in else None
        self._breaks, self._resets_until = breaks, resets_until
        self.action_space = SPOKEN
        self.observation_space = SEEN
        self.render_mode = render_mode
        self._highest, self._mode, self._secret = highest, mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if self._broken_so_far() >= self._resets_until:
            raise OSError("the vault is gone")
        self._secret = int(self.np_random.integers(1, self._highest + 1))
        return f"A number from 1 to {self._highest}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "break" and self._broken_so_far() < self._breaks:
            if self._broken is not None:  # a folder: this process may not write files
                (self._broken / str(self._broken_so_far())).mkdir()
            self._go_wrong()
        if action == "gold" and self._mode == "wins":
            return "a coin", 0.5, False, False, {}
        if self._mode == "talks":
            return "-" * 400_000, 0.0, False, False, {}
        if self._mode == "dice":
            return f"the dice say {int.from_bytes(os.urandom(6))}", 0.25, False, False, {}
        if action == str(self._secret):
            return "open", 1.0, True, False, {}
        return ("higher" if action.isdigit() and int(action) < self._secret else "lower"), -0.125, False, False, {}

    def _broken_so_far(self) -> int:
        return len(list(self._broken.iterdir())) if self._broken is not None else 0

    def _go_wrong(self) -> None:
        match self._mode:
            case "raises" | "wins":
                raise ValueError("the vault is jammed")
            case "exits":
                os._exit(3)
            case "spins":
                while True:
                    pass
            case _:
                _ = bytearray(1 << 40)


gymnasium.register("tests/Vault-v0", f"{__name__}:Vault")
