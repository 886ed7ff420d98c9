"""The environments of a worker: a few processes, an episode at a time in each.

Invariants
    - An episode is its world and its actions. A process that has it one action short goes on; any other makes it again, replays it, and
      compares what comes with what came: an episode never goes on from another state than the model saw.
    - So there may be more episodes than processes, a process may die, and nothing of an episode is lost by it.
    - What an environment does to its process (time, memory, the random state) is felt by no other one and not by the worker.
    - An environment that breaks is infrastructure's, unless it breaks on the action (`Crashed`). That it does is tried, in new processes
      and in one seat, so that nothing comes between:

          a new process     the actions before it go as they went; then the action breaks it again
          another one       the actions before it go as they went; and so does the row's solution, where it has one

      Anything else is an error. Environments of `verifiers` judge in their last step, with whatever their rubric asks (a language model):
      that a first part works proves nothing of it, so there a solution is needed.
    - A name from a job is looked up in what the settings allow, and then among what the package has registered; nothing else is imported.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pipeline.errors import InvalidRequest
from workers.graders.errors import GraderError
from workers.graders.gym.settings import GymSettings
from workers.graders.gym.world import Crashed, GymWorld, Happened, Refused, Replayed
from workers.graders.killable import CallCrashed, CallTimedOut, ChildNotStarted, KillablePool

_MODULE = "workers.graders.gym.child"
_EXTRAS = {"gem": "gem", "gymnasium": "gym", "verifiers": "verifiers"}


class WorldBroke(GraderError):
    """An environment raised, ended its process, or took too long."""

    def __init__(self, why: str) -> None:
        super().__init__(why, grader="gym")


class DoesNotReplay(WorldBroke):
    """The same actions brought something else: the environment is not determined by its seed."""


class NotStarted(WorldBroke):
    """There is no process for it: nothing was done."""


@dataclass(slots=True)
class _Seat:
    pool: KillablePool
    holds: str = ""
    """Key of the episode that its process has."""
    free_since: int = 0
    in_use: bool = False

    def has(self, key: str) -> bool:
        """Whether an episode can go on in it without being made again."""
        return self.holds == key and bool(self.pool.pids)


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

    async def go_on(
        self,
        world: GymWorld,
        key: str,
        actions: Sequence[str],
        known: Sequence[str],
        *,
        solution: Sequence[str] | None = None,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Happened | Refused | Crashed:
        """What the last of these actions brings; without any, how the episode begins.

        Args:
            known: digests of how it began and of what each action before brought.
            solution: actions that are known to work.
            waiting: entered while a process is waited for, the episode is made again, or it is found out whose doing a break was.

        Raises:
            WorldBroke; DoesNotReplay: it had to be made again, and went another way.
            InvalidRequest: there is no such environment, or it is not allowed.
        """
        self.refuse(world)
        async with self._seat(key, waiting) as seat:
            if not actions:
                return await self._one(seat, world, key, (), known)
            if not seat.has(key):
                with waiting():
                    await self._one(seat, world, key, actions[:-1], known)
            try:
                return await self._one(seat, world, key, actions, known)
            except DoesNotReplay:
                raise
            except WorldBroke:
                if world.package == "verifiers" and not solution:
                    raise
            with waiting():
                return await self._try_again(seat, world, key, actions, known, solution)

    async def _try_again(
        self, seat: _Seat, world: GymWorld, key: str, actions: Sequence[str], known: Sequence[str], solution: Sequence[str] | None
    ) -> Happened | Refused | Crashed:
        """What an action brings that broke the environment; see the invariants."""
        await seat.pool.renew()
        await self._one(seat, world, key, actions[:-1], known)
        try:
            return await self._one(seat, world, key, actions, known)
        except (DoesNotReplay, NotStarted):
            raise
        except WorldBroke as broken:
            why = broken.why
        await seat.pool.renew()
        await self._one(seat, world, key, actions[:-1], known)
        if solution:
            await self._call(seat, world, self.new_key(), solution, (), whole=True)
        return Crashed(why)

    async def _one(self, seat: _Seat, world: GymWorld, key: str, actions: Sequence[str], known: Sequence[str]) -> Happened | Refused:
        reply = await self._call(seat, world, key, actions, known, whole=False)
        if "refused" in reply:
            return Refused(str(reply["refused"]))
        return Happened(**reply["happened"])

    async def replay(self, world: GymWorld, actions: Sequence[str]) -> list[Replayed]:
        """How an episode of these actions begins, and what each of them brings.

        Raises:
            WorldBroke; DoesNotReplay: it ends before they do, or takes one of them for no action.
            InvalidRequest: as from `go_on`.
        """
        self.refuse(world)
        key = self.new_key()
        async with self._seat(key, nullcontext) as seat:
            reply = await self._call(seat, world, key, actions, (), whole=True)
        if "refused" in reply:
            raise DoesNotReplay(f"an action is none any more: {reply['refused']}")
        return [Replayed(**each) for each in reply["replayed"]]

    async def _call(
        self, seat: _Seat, world: GymWorld, key: str, actions: Sequence[str], known: Sequence[str], *, whole: bool
    ) -> dict[str, Any]:
        request = {
            "world": world.as_map(),
            "modules": list(self._settings.modules),
            "key": key,
            "actions": list(actions),
            "known": list(known),
            "all": whole,
        }
        limit_s, tries = self._settings.step_timeout_s, 1  # what dies of a step dies of what the model did, or else is made again
        if not actions or not seat.has(key):
            limit_s, tries = self._settings.start_timeout_s + len(actions) * self._settings.step_timeout_s, 2
        seat.holds = ""
        try:
            reply = await seat.pool.call(request, limit_s=limit_s, tries=tries)
        except ChildNotStarted as missing:
            raise NotStarted(f"{world.package}/{world.environment}: {missing}") from missing
        except (CallTimedOut, CallCrashed) as broken:
            raise WorldBroke(f"{world.package}/{world.environment}: {broken}") from broken
        if "error" in reply:
            raise _error_of(world, str(reply["error"]), str(reply["message"]))
        seat.holds = key
        return reply

    @asynccontextmanager
    async def _seat(self, key: str, waiting: Callable[[], AbstractContextManager[object]]) -> AsyncIterator[_Seat]:
        """The one that has the episode, else the one that was left alone for longest."""
        with waiting():
            await self._places.acquire()
        try:
            free = [seat for seat in self._seats if not seat.in_use]
            seat = next((seat for seat in free if seat.has(key)), None) or min(free, key=lambda seat: seat.free_since)
            seat.in_use = True
            try:
                yield seat
            finally:
                seat.in_use = False
                seat.free_since = next(self._times)
        finally:
            self._places.release()


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
