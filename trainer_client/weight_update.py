"""Other weights under running jobs: the protocol of docs/adr/0013-weight-updates.md, step by step.

Invariants:
  1. No label stands on weights that it does not name. A server is labelled as being changed before the block is entered, and gets its new
     label only while the lease lives and when it is proven to be the process that was paused (`Engine.prove`), before and after.
  2. Entering fails without a trace: as long as the block was not entered the weights are the old ones, and get their label back.
  3. A block that raises, or that dies, leaves servers without a label that anything allows. The next update mends them.
  4. The pool says the new label before any engine goes on, so what begins afterwards is held to it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal

from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.failpoints import failpoint
from pipeline.inference_pool import label as label_of
from pipeline.inference_pool import updating_label
from pipeline.inference_pool.labels import is_updating
from trainer_client.calls_in_flight import calls_have_ended
from trainer_client.engines import Engine, Engines, NotLoaded
from trainer_client.errors import UpdateFailed
from trainer_client.logs import Log
from trainer_client.run_pause import RunPause
from trainer_client.servers_to_load import ServersToLoad, ServerToLoad

if TYPE_CHECKING:
    from pipeline.engines import PauseMode

log = Log(__name__)

UpdateMode = Literal["keep", "abort", "wait"]
MODES: tuple[UpdateMode, ...] = ("keep", "abort", "wait")
LOOK_EVERY_S, MAX_MISSES = 5.0, 2
"""At an engine whose calls are to end before it is paused."""
LABEL_WITHIN_S = 30.0
"""Longest time for a label; what is left of the lease, if that is less."""


@asynccontextmanager
async def update_weights(
    pause: RunPause,
    *,
    number: int,
    mode: UpdateMode,
    api_key: str,
    is_inside: bool,
    set_version: Callable[[int], Awaitable[None]],
    drop: Callable[[Sequence[str]], Awaitable[object]],
) -> AsyncIterator[ServersToLoad]:
    """See `Run.weight_update`.

    Args:
        pause: not taken yet, or, with `is_inside`, that of engines that are away: then it goes on afterwards.
        set_version: makes the number the policy version of the run, in its shard.
        drop: takes servers from the run.
    """
    update = _Update(pause, number, mode, is_inside, drop)
    try:
        found = await pause.take("away" if is_inside else "update", mode, update.label)
        if not found:
            raise InvalidRequest(f"run {pause.run!r} has no servers of its own to update: run.servers.attach(urls)", field="servers")
        async with Engines(found, api_key) as engines:
            servers = await update.enter(engines)
            try:
                yield servers
            finally:
                servers.close()
            await update.complete(engines, servers, lambda: set_version(number))
    finally:
        if not is_inside:
            await pause.release()


class _Update:
    """The steps of one update."""

    def __init__(
        self,
        pause: RunPause,
        number: int,
        mode: UpdateMode,
        is_inside: bool,
        drop: Callable[[Sequence[str]], Awaitable[object]],
    ) -> None:
        self.label = label_of(pause.run, pause.incarnation, number)
        self._pause = pause
        self._run = pause.run
        self._version = f"{pause.incarnation}.{number}"
        self._mode: UpdateMode = mode
        self._is_inside = is_inside
        self._drop = drop
        self._updating = updating_label(pause.run, pause.holder)
        self._done = f"{pause.holder}/{self._version}/{secrets.token_hex(4)}"

    async def enter(self, engines: Engines) -> ServersToLoad:
        """Steps 2 and 3: the engines stand, and no old label is on them any more.

        Raises:
            UpdateFailed: none of them does.
            InvalidRequest: one cannot keep its calls.
            PauseLost, StaleIncarnation
        """
        try:
            await self._stop(engines)
            await engines.each("before it is loaded", self._mark, within_s=self._label_within_s())
            await self._pause.renew({engine.url: self._updating for engine in engines.left}, engines.starts)
            self._need_one(engines)
        except BaseException:
            await self._give_up(engines)
            raise
        to_load = [ServerToLoad(engine.url, engine.server.model, engine.before) for engine in engines.left]
        return ServersToLoad(self._run, self._version, to_load, _failed(engines), self._pause.check)

    async def complete(self, engines: Engines, servers: ServersToLoad, set_version: Callable[[], Awaitable[None]]) -> None:
        """Step 5: what was loaded gets its label, and goes on.

        Raises:
            UpdateFailed: none was loaded.
            PauseLost, StaleIncarnation, RunClosed
        """
        for engine in engines.left:
            engine.failed = servers.failed.get(engine.url, "")
        await self._pause.renew()
        try:
            await engines.each("after it was loaded", lambda engine: engine.prove(self._updating), within_s=self._label_within_s())
            self._need_one(engines)
            await set_version()
            await self._pause.renew()
            await engines.each("while it was labelled", self._label_anew, within_s=self._label_within_s())
            await self._take_back([engine for engine in engines.all if engine.is_unproven])
            await self._disown([engine.url for engine in engines.all if engine.is_unproven])
            self._need_one(engines)
            labels = {engine.url: self.label for engine in engines.left}
            await self._pause.finish(self._done, label=self.label, labels=labels, starts=engines.starts, stays=self._is_inside)
            await engines.each("it has the new weights, and keepers try again to resume it", _go_on)
        finally:
            servers.failed.update(_failed(engines))

    async def _stop(self, engines: Engines) -> None:
        await engines.each("before it was paused", self._pause_one)
        without = [engine for engine in engines.left if not engine.is_paused]
        if without and not self._is_inside:
            if self._mode == "keep":
                raise InvalidRequest(
                    f"{without[0].url} has no pause, so it cannot keep its calls while weights change: mode='abort' or 'wait', or "
                    "start it with its development routes",
                    field="mode",
                )
            urls = [engine.url for engine in without]
            await calls_have_ended(self._pause, urls, urls, abort=self._mode == "abort")

    async def _pause_one(self, engine: Engine) -> None:
        from pipeline.engines import Unsupported

        health = await engine.look()
        engine.before, engine.started = health.version or engine.server.label, health.started
        if self._is_inside:
            return  # no call is in flight, and none begins
        # an update that broke off left it paused: what is frozen there would never end by itself
        was_left = health.paused or (not health.tells_pause and is_updating(health.version))
        mode: PauseMode = "abort" if was_left and self._mode == "wait" else self._mode
        try:
            if mode == "wait" and not health.tells_pause:
                await engine.control.resume()  # one whose weights nobody has changed yet may have been left paused, too
            await _pause(engine, mode)
            engine.is_paused = True
            failpoint("engine_paused")
        except Unsupported:
            return

    async def _mark(self, engine: Engine) -> None:
        await engine.label(self._updating)
        engine.is_marked = True
        await engine.prove(self._updating)
        failpoint("engine_marked")

    async def _label_anew(self, engine: Engine) -> None:
        from pipeline.engines import Unsupported

        await engine.relabel(self._updating, self.label)
        failpoint("engine_label_sent")
        if not engine.is_paused:
            with suppress(Unsupported):  # the salt of calls is the label: what older weights cached is never met
                await engine.control.reset_cache()
        await engine.prove(self.label)
        engine.is_unproven = False
        failpoint("engine_labelled")

    async def _take_back(self, engines: Sequence[Engine]) -> None:
        """A start that came in between has our label on the weights of its start, and would be taken for loaded."""

        async def one(engine: Engine) -> None:
            try:
                async with asyncio.timeout(self._label_within_s()):
                    await engine.control.set_version(self._updating)
                engine.is_unproven = False
            except (RollstreamError, TimeoutError) as error:  # not ours to label any more, or it does not answer
                log.warning("label_not_taken_back", server=engine.url, error=str(error))

        await asyncio.gather(*map(one, engines))

    async def _undo(self, engines: Engines) -> None:
        """Nobody changed the weights yet: those that were marked get their label back."""

        async def one(engine: Engine) -> None:
            if engine.is_marked and engine.before:
                await engine.relabel(self._updating, engine.before)
            await _go_on(engine)

        await engines.each("as the update was given up", one, within_s=self._label_within_s())
        labels = {engine.url: engine.before for engine in engines.left if engine.is_marked}
        await self._pause.finish(self._done, labels=labels, starts=engines.starts, stays=self._is_inside)

    async def _give_up(self, engines: Engines) -> None:
        try:
            await self._undo(engines)
        except RollstreamError as error:  # what made us give up is what the trainer is told
            log.warning("update_not_undone", run=self._run, error=str(error), what="keepers resume what has a label that the run allows")

    async def _disown(self, urls: Sequence[str]) -> None:
        """Servers that bear the label of weights which they do not hold, and could not be told otherwise, leave the run."""
        if urls:
            log.error("servers_dropped", run=self._run, servers=list(urls), why="they bear a label that is not theirs, and do not answer")
            await self._drop(urls)

    def _need_one(self, engines: Engines) -> None:
        if not engines.left:
            raise UpdateFailed(self._run, self._version, _failed(engines))

    def _label_within_s(self) -> float:
        self._pause.check()
        return min(LABEL_WITHIN_S, self._pause.left_s)


async def _pause(engine: Engine, mode: PauseMode) -> None:
    """Pauses an engine, for as long as its calls take to end. One that falls silent meanwhile would be waited for without end.

    Raises:
        NotLoaded: it does not answer any more.
    """
    pausing, misses = asyncio.create_task(engine.control.pause(mode), name=f"pause {engine.url}"), 0
    try:
        while not pausing.done():
            await asyncio.wait((pausing,), timeout=LOOK_EVERY_S)
            if not pausing.done():
                misses = 0 if (await engine.control.health()).alive else misses + 1
                if misses == MAX_MISSES:
                    raise NotLoaded("it does not answer any more")
        await pausing
    finally:
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)


async def _go_on(engine: Engine) -> None:
    if engine.is_paused:
        await engine.control.resume()
        failpoint("engine_resumed")


def _failed(engines: Engines) -> dict[str, str]:
    return {engine.url: engine.failed for engine in engines.all if engine.failed}
