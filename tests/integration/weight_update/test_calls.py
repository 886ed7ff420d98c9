"""Weight updates under calls that go on all the time: no token bears a version that is not that of the weights which made it (ADR 13)."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.weight_update.callers import Callers, all_turned, calling
from tests.integration.weight_update.engines import Engines
from tests.integration.weight_update.loading import load, weights_of
from trainer_client import Run, ServersToLoad
from trainer_client.weight_update import MODES, UpdateMode
from workers.llm.scripted import Fault, Latency, ServerOptions

pytestmark = pytest.mark.one_server
TOKEN_S = 0.004


async def load_version(servers: ServersToLoad) -> None:
    await asyncio.gather(*(load(server.url, weights_of(servers.version)) for server in servers))


async def update(run: Run, number: int, mode: UpdateMode = "keep") -> ServersToLoad:
    async with run.weight_update(number, mode=mode) as servers:
        await load_version(servers)
    return servers


async def have_turned(callers: Callers, turns: int = 1) -> None:
    await wait_until(all_turned(callers, turns), f"each job has finished {turns} more turns", timeout_s=30)


@pytest.mark.parametrize("wire", ["0.32", "0.33", "sglang-0.5.10", "sglang-0.5"])
@pytest.mark.parametrize("mode", MODES)
async def test_calls_go_on_over_updates_and_each_token_bears_its_version(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient, mode: UpdateMode, wire: str
) -> None:
    options = ServerOptions(wire=wire, latency=Latency(per_token_s=TOKEN_S, sigma=0.0))  # type: ignore[arg-type]  # one of its words
    await run.servers.attach([await engines.start(name, options) for name in ("a", "b")])
    async with calling(settings, client) as callers:
        callers.start(8)
        await have_turned(callers)

        for number in range(3):
            servers = await update(run, number, mode)
            assert servers.failed == {}
            await have_turned(callers)

        callers.check()
        assert callers.versions == {"default", "1.0", "1.1", "1.2"}
        crossed = [result for _, result in callers.results if len(result.spans) > 1]
        aborted = [result for _, result in callers.results if result.finish == "abort"]
        has_spans = wire != "sglang-0.5.10"  # without them a call over which weights changed is made again
        assert bool(crossed) == (mode == "keep" and has_spans), "frozen calls go on with the new weights"
        assert bool(aborted) == (mode == "abort"), "aborted ones return what they have"
        if has_spans or mode != "keep":
            assert (await run.servers.state()).rerouted == 0, "nobody has lost its server"


async def test_updates_without_a_pause_at_the_engine(run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient) -> None:
    """No development routes: calls are ended by their ids, or waited for, and the pool keeps the labels."""
    options = ServerOptions(wire="0.31", latency=Latency(per_token_s=TOKEN_S, sigma=0.0))
    await run.servers.attach(await engines.start("a", options))
    async with calling(settings, client) as callers:
        callers.start(4)
        await have_turned(callers)
        for number, mode in enumerate(MODES):
            await update(run, number, mode)
            await have_turned(callers)
        callers.check()


async def test_engines_away_end_all_calls_and_give_them_back(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient
) -> None:
    """They are gone and come back with nothing in them, as after a deep sleep; the update in the block gives them their weights."""
    urls = [await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")]
    await run.servers.attach(urls, control="trainer")
    await update(run, 0)
    async with calling(settings, client) as callers:
        callers.start(8)
        await have_turned(callers)

        async with run.engines_away():
            state = await run.servers.state()
            assert state.is_away
            assert sum(server.calls for server in state.servers) == 0
            assert [engines[name].engine.request_ids() for name in ("a", "b")] == [[], []]
            for name in ("a", "b"):
                await engines.die(name)
            turns = dict(callers.turns)
            for name in ("a", "b"):
                await engines.start(name, per_token_s=TOKEN_S)
            await update(run, 1)
            assert (await run.servers.state()).is_away, "the update is a part of the absence, which goes on"
            assert callers.turns == turns

        await have_turned(callers)
        callers.check()
        assert callers.versions == {"1.0", "1.1"}
        assert (await run.servers.state()).rerouted == 0
        assert {server.standing for server in await run.servers.list()} == {"up"}


async def test_engines_that_keep_their_weights_go_on_at_once(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient
) -> None:
    await run.servers.attach(await engines.start("a", per_token_s=TOKEN_S))
    await update(run, 3)
    async with calling(settings, client) as callers:
        callers.start(4)
        await have_turned(callers)
        async with run.engines_away(mode="wait", weights_kept=True):
            assert engines["a"].engine.request_ids() == []
        await have_turned(callers)

        async with run.engines_away(mode="abort"):
            pass
        turns = dict(callers.turns)
        assert (await run.servers.list())[0].standing == "unsynced", "who does not say that they were kept loads them"
        await update(run, 4)
        await have_turned(callers)

        callers.check()
        assert all(callers.turns[job] >= turns[job] for job in turns)
        assert callers.versions == {"1.3", "1.4"}


@pytest.mark.parametrize("next_one", ["update", "away"])
async def test_calls_frozen_by_an_update_that_broke_off_keep_nobody_waiting(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient, next_one: str
) -> None:
    """The engine stood with calls frozen in it. The next update waited for them to end, which they never would."""
    await run.servers.attach([await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")])
    await update(run, 1)
    async with calling(settings, client) as callers:
        callers.start(6)
        await have_turned(callers)

        async def breaks() -> None:
            async with run.weight_update(2, mode="keep") as servers:
                await load(servers[0].url, "half of it")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await breaks()
        async with asyncio.timeout(20):
            if next_one == "away":
                async with run.engines_away(mode="wait"):
                    assert engines["a"].engine.request_ids() == engines["b"].engine.request_ids() == []
            await update(run, 2, "wait")

        await have_turned(callers)
        callers.check()
        assert callers.versions == {"1.1", "1.2"}


async def test_a_server_that_restarts_with_old_weights_gets_no_call_until_it_is_loaded(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient
) -> None:
    await run.servers.attach([await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")])
    await update(run, 1)
    async with calling(settings, client) as callers:
        callers.start(6)
        await have_turned(callers)
        seen = len(callers.results)

        engines["a"].restart()
        await have_turned(callers, 2)

        callers.check()
        assert callers.versions <= {"1.1"}
        await wait_until(lambda: _stands(run, engines.url("a"), "unsynced"), "a keeper saw it")
        assert len(callers.results) > seen
        await update(run, 2)
        await wait_until(lambda: _stands(run, engines.url("a"), "up"), "it is loaded")
        await have_turned(callers, 2)
        callers.check()


async def _stands(run: Run, url: str, standing: str) -> bool:
    return any(server.url == url and server.standing == standing for server in await run.servers.list())


async def test_a_server_that_restarts_as_it_is_labelled_is_not_called(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient
) -> None:
    """Its new start took the label for weights that it does not hold. The update knew; the next look of a keeper believed the label."""
    urls = [await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")]
    await run.servers.attach(urls)
    async with calling(settings, client) as callers:
        async with run.weight_update(1) as servers:
            await load_version(servers)
            engines["a"].faults.arm(Fault(kind="restart", path="/update_weight_version"))
        seen_ms = (await run.servers.state()).now_ms

        async def was_looked_at() -> bool:
            return all(server.seen_ms > seen_ms for server in await run.servers.list())

        await wait_until(was_looked_at, "a keeper has looked at both")
        callers.start(6)
        await have_turned(callers, 2)
        callers.check()
        assert await _stands(run, urls[0], "unsynced")


SILENT = (
    "/health",
    "/version",
    "/model_info",
    "/metrics",
    "/is_paused",
    "/weight_info",
    "/pause",
    "/inference/v1/abort_requests",
    "/abort_requests",
)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("next_one", ["away", "update"])
async def test_a_server_that_falls_silent_keeps_nobody_waiting(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient, next_one: str
) -> None:
    """It holds connections and answers nothing: calls there can be neither ended nor told apart from lost ones."""
    urls = [await engines.start(name, per_token_s=60.0) for name in ("a", "b")]
    await run.servers.attach(urls)
    async with calling(settings, client) as callers:
        callers.start(4)
        await wait_until(lambda: all(engines[name].engine.n_running for name in ("a", "b")), "calls are at both")
        for path in SILENT:
            engines["a"].faults.arm(Fault(kind="hang", path=path, times=10_000))

        async with asyncio.timeout(60):
            if next_one == "away":
                async with run.engines_away():
                    assert engines["b"].engine.request_ids() == []
            else:
                async with run.weight_update(1, mode="abort") as servers:
                    await load_version(servers)
                assert list(servers.failed) == [urls[0]]
