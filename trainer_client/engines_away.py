"""Colocated engines that are not there while their trainer trains (docs/adr/0013-weight-updates.md).

Until the block ends no call begins, no server is judged and no deadline comes. A trainer that dies in it gives all that back within one
lease; servers whose weights may have gone meanwhile stay without jobs until an update loads them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from pipeline.inference_pool import updating_label
from trainer_client.calls_in_flight import calls_have_ended
from trainer_client.engines import Engine, Engines
from trainer_client.logs import Log
from trainer_client.run_pause import RunPause

log = Log(__name__)

AwayMode = Literal["abort", "wait"]
AWAY_MODES: tuple[AwayMode, ...] = ("abort", "wait")
MARK_WITHIN_S = 30.0


@asynccontextmanager
async def away(pause: RunPause, *, mode: AwayMode, weights_kept: bool, api_key: str) -> AsyncIterator[None]:
    """See `Run.engines_away`. The pause is not taken yet."""
    updating = "" if weights_kept else updating_label(pause.run, pause.holder)
    try:
        found = await pause.take("leaving", mode)
        async with Engines(found, api_key) as engines:
            await _empty(pause, engines, mode)
            unmarked = await _mark(pause, engines, updating)
        await pause.take("away", mode)
        yield
        await pause.renew()
        async with Engines([server for server in found if server.url in unmarked], api_key) as engines:
            await _mark(pause, engines, updating)
        await pause.finish(f"{pause.holder}/back")
    finally:
        await pause.release()


async def _empty(pause: RunPause, engines: Engines, mode: AwayMode) -> None:
    """No call is in flight afterwards. A pause ends those in an engine at once; keepers of the pool end the others."""
    from pipeline.engines import Unsupported

    async def stop(engine: Engine) -> None:
        health = await engine.look()
        if mode == "abort" or health.paused:  # what an update that broke off froze there would never end by itself
            try:
                await engine.control.pause("abort")
                await engine.control.resume()  # what arrives now must begin, to be found by its id and ended
            except Unsupported:
                return

    await engines.each("before it went away", stop)
    await calls_have_ended(pause, [engine.url for engine in engines.all], [engine.url for engine in engines.left], abort=mode == "abort")


async def _mark(pause: RunPause, engines: Engines, updating: str) -> set[str]:
    """No old label stays on weights that may be gone when the engine is back. Returns which engines could not be told."""
    if not updating:
        return set()

    async def mark(engine: Engine) -> None:
        await engine.label(updating)

    for engine in engines.all:
        engine.failed = ""
    await engines.each("as it was told that its weights may change", mark, within_s=min(MARK_WITHIN_S, pause.left_s))
    await pause.renew({engine.url: updating for engine in engines.all})
    return {engine.url for engine in engines.all if engine.failed}
