"""What an environment's process does: it holds one episode, goes one step on in it, or makes it again and replays what was done.

Run by `worlds.py` as `python -m workers.graders.gym.child`. One episode a process at a time: environments draw from the random state of
their whole process, which `reset` seeds, so two of them in one would not replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workers.graders.gym.packages import Env
from workers.graders.gym.world import Happened, Refused, Replayed
from workers.graders.killable_child import serve


class Differs(Exception):
    """The same actions brought something else than they had brought before."""


class OneEpisode:
    """The episode that stands."""

    def __init__(self) -> None:
        self._key = ""
        self._env: Env | None = None
        self._so_far: list[Happened] = []
        """What `reset` and each action brought."""

    def play(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request: `actions` are all of the episode, `known` the digests of what they are known to have brought."""
        try:
            return self._play(request)
        except BaseException:
            self._env = None  # whatever state it is in, nobody knows it
            raise

    def _play(self, request: dict[str, Any]) -> dict[str, Any]:
        actions, known = [str(action) for action in request["actions"]], [str(digest) for digest in request["known"]]
        if self._env is None or self._key != request["key"] or len(self._so_far) != len(actions) or not actions:
            self._begin(request)
            self._expect(known)
        for action in actions[len(self._so_far) - 1 :]:
            refused = self._go(action)
            if refused is not None:
                return {"refused": refused.why}
            self._expect(known)
        if request["all"]:
            return {"replayed": [asdict(Replayed.of(each)) for each in self._so_far]}
        return {"happened": asdict(self._so_far[-1])}

    def _begin(self, request: dict[str, Any]) -> None:
        if self._env is not None:
            self._env.close()
        self._env, self._key = None, str(request["key"])
        world = request["world"]
        env = Env(world["package"], world["environment"], world["options"], tuple(request["modules"]))
        self._so_far = [env.reset(int(world["seed"]))]
        self._env = env

    def _go(self, action: str) -> Refused | None:
        assert self._env is not None
        if self._so_far[-1].ends:
            raise Differs(f"it was over after {len(self._so_far) - 1} actions, and was not before")
        found = self._env.step(action)
        if isinstance(found, Refused):
            return found
        self._so_far.append(found)
        return None

    def _expect(self, known: Sequence[str]) -> None:
        number = len(self._so_far) - 1
        if number < len(known) and self._so_far[number].digest != known[number]:
            what = f"action {number} brought something else" if number else "it began otherwise"
            raise Differs(f"{what} than the first time")


if __name__ == "__main__":
    serve(OneEpisode().play)
