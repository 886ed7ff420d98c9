r"""An episode beside a trajectory: the model's messages are its actions, and what it answers are user messages.

What the model said that was no action (no tag, no number of the space) is answered with what is expected, and the environment hears nothing
of it. Everything else is kept, for EVAL: each action, and the digest and reward of what it brought; last of all, that an action broke the
environment, each time that it was tried. That ends the episode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pipeline.messages import Json
from workers.agent import WorldReply
from workers.graders import last_boxed
from workers.graders.gym import Crashed, GymWorld, Happened, Refused, Worlds
from workers.handlers.gym.layouts import ActionIn, GymProblem

HOW = {
    "boxed": "Write your action in \\boxed{}.",
    "tag": "Write your action between <action> and </action>.",
    "message": "",
}
"""What the model is told once, before the first observation."""
_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
MAX_ACTION_CHARS = 100_000


def action_of(said: str, action_in: ActionIn) -> str | None:
    """The action in a message; None = there is none."""
    match action_in:
        case "message":
            return said[:MAX_ACTION_CHARS]
        case "boxed":
            found = last_boxed(said)
        case "tag":
            tagged = _TAGGED.findall(said)
            found = tagged[-1] if tagged else None
    return None if found is None else found.strip()[:MAX_ACTION_CHARS]


@dataclass(slots=True, kw_only=True)
class Episode:
    """One, from its beginning on. It is a `workers.agent.World`."""

    worlds: Worlds
    world: GymWorld
    key: str
    action_in: ActionIn
    solution: Sequence[str] | None
    waiting: Callable[[], AbstractContextManager[object]]
    """Entered for time that is not the model's."""
    began: Happened
    actions: list[str] = field(default_factory=list)
    brought: list[Happened] = field(default_factory=list)
    """One an action."""
    no_actions: int = 0
    """Messages that held none."""
    crashed: Crashed | None = None
    """The last action, which is not among `actions`, broke the environment."""

    @classmethod
    async def begin(cls, worlds: Worlds, problem: GymProblem, waiting: Callable[[], AbstractContextManager[object]]) -> Episode:
        """`reset`. A free process and the import of a package are not the model's time."""
        key = worlds.new_key()
        with waiting():
            began = await worlds.go_on(problem.world, key, (), ())
        assert isinstance(began, Happened), "nothing was done that could be refused"
        return cls(
            worlds=worlds,
            world=problem.world,
            key=key,
            action_in=problem.action_in,
            solution=problem.solution,
            waiting=waiting,
            began=began,
        )

    async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
        """`step`. Its time is bounded where it runs, by the settings."""
        action = action_of(said, self.action_in)
        if action is None:
            self.no_actions += 1
            return WorldReply(text=f"There is no action in this. {HOW[self.action_in]}")
        known = [self.began.digest, *(each.digest for each in self.brought)]
        found = await self.worlds.go_on(self.world, self.key, [*self.actions, action], known, solution=self.solution, waiting=self.waiting)
        if isinstance(found, Crashed):
            self.crashed = found
            return WorldReply(text="The environment broke on this action: the episode is over.", ends=True)
        if isinstance(found, Refused):
            self.no_actions += 1
            return WorldReply(text=f"{action[:200]!r} is no action here: {found.why}. {HOW[self.action_in]}".rstrip())
        self.actions.append(action)
        self.brought.append(found)
        return WorldReply(text=found.text, ends=found.ends)

    def record(self) -> Json:
        """For `trajectory.extra`."""
        crashed = self.crashed.why if self.crashed else ""
        return {"episode": episode_as_map(self.actions, [self.began, *self.brought], no_actions=self.no_actions, crashed=crashed)}


def episode_as_map(actions: Sequence[str], happened: Sequence[Happened], *, no_actions: int = 0, crashed: str = "") -> Json:
    """An episode as it travels.

    Args:
        happened: how it began, and what each action brought; none when it was not played.
        crashed: how one more action broke the environment; empty = none did.
    """
    return {
        "actions": list(actions),
        "digests": [each.digest for each in happened],
        "rewards": [each.reward for each in happened[1:]],
        "terminated": bool(happened) and happened[-1].terminated,
        "truncated": bool(happened) and happened[-1].truncated,
        "no_actions": no_actions,
        "crashed": crashed,
    }
