r"""The task `gym`: an episode of a text environment, a message an action; what its steps brought is the reward.

RUN plays the episode in a process of the worker's and notes each action and what it brought. EVAL makes the environment again, with the
same seed, does the same, and takes what that brings. Where it goes another way (an environment that its seed does not determine), the
grade is what RUN noted, its component `replayed` is 0 and its reason says so. A job whose model made no move has the reward 0.

An action that breaks the environment, and does so again while all before it works (`Worlds`), ends the episode as `action_crashed`. Its
reward is 0, or what the steps had brought where that is below 0: so nobody keeps by it what was won, nor gets rid of what was lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files

from pipeline.messages import ChatMessage, Grade, JobSpec, Json, Trajectory
from workers.graders import GraderError
from workers.graders.gym import GymSettings, Worlds
from workers.graders.gym.worlds import DoesNotReplay
from workers.handlers.agent_handler import AgentHandler, Scene
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext
from workers.handlers.graded_by import graded_by
from workers.handlers.gym.episode import HOW, Episode, episode_as_map
from workers.handlers.gym.layouts import LAYOUTS, GymProblem
from workers.handlers.submission import submitted
from workers.handlers.task_data import problem_in
from workers.handlers.task_options import OneOf, Option, Text
from workers.sandbox.base import Sandbox

SAMPLES = (files("workers.handlers.gym.problems") / "lamps.jsonl",)
REWARD = Option(
    name="reward", takes=OneOf(("sum", "last")), default="sum", about="`sum`: of all steps' rewards; `last`: that of the last step"
)
SYSTEM = Option(name="system", takes=Text(), default="", without="*none*", about="a system message")


class GymHandler(AgentHandler):
    """Text environments; `layouts.py` has how rows are written.

    Args:
        settings: which there may be; default: what the settings of this process say.
    """

    name = "gym"
    about = (
        "An episode of a text environment (GEM, Gymnasium, or one of our own), a message an action; its rewards, replayed, are the grade."
    )
    layouts = LAYOUTS
    samples = SAMPLES
    options = (REWARD, SYSTEM)

    def __init__(self, settings: GymSettings | None = None) -> None:
        self._settings = settings
        self._open: Worlds | None = None

    async def open(self) -> None:
        worlds = Worlds(self._settings or GymSettings.load(self.config))
        self._open = await worlds.__aenter__()

    async def close(self) -> None:
        if self._open is not None:
            await self._open.__aexit__(None, None, None)

    async def init(self, context: StageContext) -> Environment:
        self._worlds().refuse(_problem(context.spec).world)
        return await super().init(context)

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        """What stands before the first observation; RUN adds that to the last message."""
        problem = _problem(spec)
        system = SYSTEM.of(spec)
        said = (ChatMessage(role="system", content=system),) if system else ()
        words = "\n".join(words for words in (problem.intro.strip(), HOW[problem.action_in]) if words)
        return (*said, ChatMessage(role="user", content=words))

    @asynccontextmanager
    async def scene(self, context: RunContext, sandbox: Sandbox | None) -> AsyncIterator[Scene]:
        problem = _problem(context.spec)
        context.gate()
        episode = await Episode.begin(self._worlds(), problem, context.active.waiting)
        *before, asked = self.messages(context.spec)
        if episode.began.system and not before:
            before = [ChatMessage(role="system", content=episode.began.system)]
        first = ChatMessage(role="user", content="\n\n".join(text for text in (asked.content, episode.began.text) if text))
        yield Scene(messages=(*before, first), world=episode, record=episode.record)

    async def evaluate(self, context: EvalContext) -> Grade:
        began = time.monotonic()
        played = _played(context.trajectory.extra)
        if not played.actions and not played.crashed:
            return Grade(reward=0.0, components={"steps": 0.0}, details={"reason": "no_move"}, grader=graded_by(self.name))
        rewards, ended, why = played.rewards, (played.terminated, played.truncated), ""
        try:
            found = await self._worlds().replay(_problem(context.spec).world, played.actions)
        except DoesNotReplay as differs:
            if not played.digests:
                raise
            why = differs.why
        else:
            if played.digests and played.digests != tuple(each.digest for each in found):
                why = "the same actions brought something else in EVAL"
            else:
                rewards, ended = tuple(each.reward for each in found[1:]), (found[-1].terminated, found[-1].truncated)
        last = rewards[-1] if rewards else 0.0
        reward = math.fsum(rewards) if REWARD.of(context.spec) == "sum" else last
        if played.crashed:
            reward = min(0.0, reward)
        components = {
            "return": math.fsum(rewards),
            "last": last,
            "steps": float(len(rewards)),
            "terminated": float(ended[0]),
            "truncated": float(ended[1]),
            "replayed": 0.0 if why else 1.0,
            "no_actions": float(played.no_actions),
            "crashed": float(bool(played.crashed)),
        }
        reason = _reason(ended, does_not_replay=bool(why), crashed=bool(played.crashed))
        detail = "; ".join(part for part in (played.crashed, why) if part)
        details: Json = {"reason": reason, "detail": detail, "rewards": list(rewards[-50:])}
        return Grade(reward=reward, components=components, details=details, grader=graded_by(self.name), seconds=time.monotonic() - began)

    def gold(self, spec: JobSpec) -> Trajectory | None:
        solution = _problem(spec).solution
        return None if solution is None else submitted(solution[-1], {"episode": episode_as_map(solution, ())})

    def _worlds(self) -> Worlds:
        assert self._open is not None, "a handler is opened before it is given jobs"
        return self._open


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """An episode as RUN noted it."""

    actions: Sequence[str] = ()
    digests: Sequence[str] = ()
    """Of its beginning and of each step; none for a solution that nobody played."""
    rewards: Sequence[float] = ()
    terminated: bool = False
    truncated: bool = False
    no_actions: int = 0
    crashed: str = ""
    """How one more action broke the environment; empty = none did."""


def _played(extra: Json) -> _Played:
    found = extra.get("episode")
    if found is None:
        return _Played()
    if not isinstance(found, Mapping):
        raise GraderError(f"an episode of {type(found).__name__}", grader="gym")
    try:
        played = _Played(
            actions=tuple(str(action) for action in found["actions"]),
            digests=tuple(str(digest) for digest in found["digests"]),
            rewards=tuple(float(reward) for reward in found["rewards"]),
            terminated=bool(found["terminated"]),
            truncated=bool(found["truncated"]),
            no_actions=int(found["no_actions"]),
            crashed=str(found.get("crashed", "")),
        )
    except (KeyError, TypeError, ValueError) as broken:
        raise GraderError(f"an episode that cannot be read: {broken!r}", grader="gym") from broken
    if played.digests and not len(played.actions) == len(played.rewards) == len(played.digests) - 1:
        raise GraderError(f"an episode of {len(played.actions)} actions and {len(played.rewards)} rewards", grader="gym")
    return played


def _reason(ended: tuple[bool, bool], *, does_not_replay: bool, crashed: bool) -> str:
    if crashed:
        return "action_crashed"
    if does_not_replay:
        return "does_not_replay"
    return "terminated" if ended[0] else "truncated" if ended[1] else "not_over"


def _problem(spec: JobSpec) -> GymProblem:
    return problem_in(spec.prompt.data, LAYOUTS)
