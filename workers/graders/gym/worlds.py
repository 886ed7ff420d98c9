"""The environments of a worker: a few processes, an episode at a time in each.

Invariants
    - An episode is its world and its actions. A process that has it one action short goes on; any other makes it again, replays it, and
      compares what comes with what came: an episode never goes on from another state than the model saw.
    - So there may be more episodes than processes, a process may die, and nothing of an episode is lost by it.
    - What an environment does to its process (time, memory, the random state) is felt by no other one and not by the worker.
    - A name from a job is looked up in what the settings allow, and then among what the package has registered; nothing else is imported.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pipeline.errors import InvalidRequest
from workers.graders.errors import GraderError
from workers.graders.gym.settings import GymSettings
from workers.graders.gym.world import GymWorld, Happened, Refused
from workers.graders.killable import CallCrashed, CallTimedOut, ChildNotStarted, KillablePool

_MODULE = "workers.graders.gym.child"
_EXTRAS = {"gem": "gem", "gymnasium": "gym", "verifiers": "verifiers"}


class WorldBroke(GraderError):
    """An environment raised, ended its process, or took too long."""

    def __init__(self, why: str) -> None:
        super().__init__(why, grader="gym")


class DoesNotReplay(WorldBroke):
    """The same actions brought something else: the environment is not determined by its seed."""


@dataclass(slots=True)
class _Seat:
    pool: KillablePool
    holds: str = ""
    """Key of the episode that its process has."""
    free_since: int = 0
    in_use: bool = False


class Worlds:
    """An async context manager; leaving it ends every process."""

    def __init__(self, settings: GymSettings) -> None:
        self._settings = settings
        self._seats = [
            _Seat(KillablePool(_MODULE, processes=1, memory_bytes=settings.memory_mb << 20, start_limit_s=settings.start_timeout_s))
            for _ in range(settings.processes)
        ]
        self._places = asyncio.Semaphore(settings.processes)
        self._times = itertools.count(1)
        self._keys = itertools.count(1)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for seat in self._seats:
            await self._stack.enter_async_context(seat.pool)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are alive now."""
        return frozenset(pid for seat in self._seats for pid in seat.pool.pids)

    def refuse(self, world: GymWorld) -> None:
        """Nothing, when this worker may run it.

        Raises:
            InvalidRequest
        """
        if world.package == "gymnasium" and ":" in world.environment:
            raise InvalidRequest(f"{world.environment!r} names a module to import, which a job may not", field="prompt.environment")
        if not self._settings.allows(world.package, world.environment):
            allowed = ", ".join(self._settings.allowed) or "none"
            raise InvalidRequest(
                f"{world.package}/{world.environment} is not allowed here; [gym] allowed has {allowed}", field="prompt.environment"
            )

    def new_key(self) -> str:
        """For an episode."""
        return f"episode {next(self._keys)}"

    async def go_on(self, world: GymWorld, key: str, actions: Sequence[str], known: Sequence[str]) -> Happened | Refused:
        """What the last of these actions brings; without any, how the episode begins.

        Args:
            known: digests of how it began and of what each action before brought.

        Raises:
            WorldBroke; DoesNotReplay: it had to be made again, and went another way.
            InvalidRequest: there is no such environment, or it is not allowed.
        """
        reply = await self._ask(world, key, actions, known, whole=False)
        if "refused" in reply:
            return Refused(str(reply["refused"]))
        return Happened(**reply["happened"][-1])

    async def replay(self, world: GymWorld, actions: Sequence[str]) -> list[Happened]:
        """How an episode of these actions begins, and what each of them brings.

        Raises:
            WorldBroke; DoesNotReplay: it ends before they do, or takes one of them for no action.
            InvalidRequest: as from `go_on`.
        """
        reply = await self._ask(world, self.new_key(), actions, (), whole=True)
        if "refused" in reply:
            raise DoesNotReplay(f"an action is none any more: {reply['refused']}")
        return [Happened(**each) for each in reply["happened"]]

    async def _ask(self, world: GymWorld, key: str, actions: Sequence[str], known: Sequence[str], *, whole: bool) -> dict[str, Any]:
        self.refuse(world)
        request = {
            "world": world.as_map(),
            "modules": list(self._settings.modules),
            "key": key,
            "actions": list(actions),
            "known": list(known),
            "all": whole,
        }
        async with self._places:
            seat = self._seat(key)
            seat.in_use = True
            limit_s = self._settings.step_timeout_s
            if seat.holds != key or not actions:
                limit_s = self._settings.start_timeout_s + len(actions) * self._settings.step_timeout_s
            seat.holds = ""
            try:
                reply = await seat.pool.call(request, limit_s=limit_s)
                seat.holds = "" if "error" in reply else key
            except (CallTimedOut, CallCrashed, ChildNotStarted) as broken:
                raise WorldBroke(f"{world.package}/{world.environment}: {broken}") from broken
            finally:
                seat.in_use = False
                seat.free_since = next(self._times)
        if "error" in reply:
            raise _error_of(world, str(reply["error"]), str(reply["message"]))
        return reply

    def _seat(self, key: str) -> _Seat:
        """The one that has the episode, else the one that was left alone for longest."""
        free = [seat for seat in self._seats if not seat.in_use]
        return next((seat for seat in free if seat.holds == key), None) or min(free, key=lambda seat: seat.free_since)


def _error_of(world: GymWorld, kind: str, message: str) -> Exception:
    name = f"{world.package}/{world.environment}"
    match kind:
        case "BadWorld":
            return InvalidRequest(message, field="prompt.environment")
        case "NotInstalled":
            return InvalidRequest(f"{message}: pip install 'rollstream[{_EXTRAS[world.package]}]'", field="prompt.package")
        case "Differs":
            return DoesNotReplay(f"{name}: {message}")
        case _:
            return WorldBroke(f"{name}: {kind}: {message}")
