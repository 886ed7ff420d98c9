r"""How environments of each package are made and spoken to, in a process of their own. Nothing here is imported by a worker's own process.

rollstream   `lamps`; text in, text out
gem          `gem.make`; text in, text out, with what its `info` sets before and after an observation
gymnasium    `gymnasium.make`; actions are texts (`spaces.Text`) or numbers (`spaces.Discrete`); observations are texts, or what
             `render` shows when the environment is made with `render_mode="ansi"`. A highlight of the terminal becomes `[...]`.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from typing import Any

from workers.graders.gym.lamps import Lamps
from workers.graders.gym.refusals import BadWorld, NotInstalled
from workers.graders.gym.verifiers_env import VerifiersEnv
from workers.graders.gym.world import Happened, Refused

_HIGHLIGHT = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m(.*?)\x1b\[0?m", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Env:
    """An environment of any package, made anew.

    Raises:
        BadWorld, NotInstalled
    """

    def __init__(self, package: str, environment: str, options: Mapping[str, Any], modules: tuple[str, ...]) -> None:
        self._package = package
        self._space: Any = None  # of the package
        self._shows = False
        try:
            made: Any = self._make(package, environment, options, modules)
        except (BadWorld, NotInstalled, MemoryError):
            raise
        except Exception as broken:
            why = f"{type(broken).__name__}: {broken}"
            raise BadWorld(f"{package}/{environment} cannot be made with {dict(options)!r:.200}: {why}") from broken
        self._env = made

    def reset(self, seed: int) -> Happened:
        """The beginning of an episode."""
        observation, info = self._env.reset(seed=seed)
        system = info.get("system")
        return Happened(self._seen(observation, info), 0.0, False, False, system if isinstance(system, str) else "")

    def step(self, action: str) -> Happened | Refused:
        """One action, as a text."""
        taken: object = action
        if self._space is not None:
            taken = self._taken(action)
            if isinstance(taken, Refused):
                return taken
        observation, reward, terminated, truncated, info = self._env.step(taken)
        if not math.isfinite(float(reward)):
            raise ArithmeticError(f"a step brought the reward {reward!r}")
        text = self._seen(observation, {} if terminated or truncated else info)
        return Happened(text, float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        """Gives back what it holds."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def _make(self, package: str, environment: str, options: Mapping[str, Any], modules: tuple[str, ...]) -> Any:
        if package == "rollstream":
            if environment != "lamps":
                raise BadWorld(f"rollstream has no environment {environment!r}; it has lamps")
            return Lamps(**options)
        if package == "verifiers":
            return VerifiersEnv(environment, options)
        try:
            library = importlib.import_module({"gem": "gem", "gymnasium": "gymnasium"}[package])
        except ModuleNotFoundError as missing:
            raise NotInstalled(f"{package} environments need the package {missing.name}") from missing
        if package == "gem":
            importlib.import_module("gem.envs")  # registers those of the package
        for module in modules:
            importlib.import_module(module)
        if package == "gem":
            return library.make(environment, **options)
        made = library.make(environment, disable_env_checker=True, **options)
        spaces = library.spaces
        self._space = made.action_space
        if not isinstance(self._space, spaces.Text | spaces.Discrete):
            raise BadWorld(f"{environment} takes actions of {self._space}; those of a text or of a number can be said")
        self._shows = not isinstance(made.observation_space, spaces.Text)
        if self._shows and made.render_mode != "ansi":
            raise BadWorld(f"{environment} shows {made.observation_space} and no text: try the option render_mode='ansi'")
        return made

    def _taken(self, action: str) -> object:
        action = action.strip()
        if hasattr(self._space, "n"):
            first, last = int(self._space.start), int(self._space.start + self._space.n - 1)
            if re.fullmatch(r"-?\d{1,9}", action) and first <= int(action) <= last:
                return int(action)
            return Refused(f"expected a whole number from {first} to {last}")
        if self._space.contains(action):
            return action
        letters = "".join(sorted(self._space.characters))
        return Refused(f"expected {self._space.min_length} to {self._space.max_length} characters out of {letters}")

    def _seen(self, observation: object, info: Mapping[str, object]) -> str:
        shown = self._env.render() if self._shows else observation
        if not isinstance(shown, str):
            raise BadWorld(f"an observation of {type(shown).__name__}, expected a text")
        if self._package == "gem":
            parts = (info.get("prefix"), shown, info.get("suffix"))
            return "\n".join(part.strip("\n") for part in parts if isinstance(part, str) and part.strip())
        return _CONTROL.sub("", _HIGHLIGHT.sub(r"[\1]", shown)).strip("\n")
