"""Keepers and ways of jobs on scripted servers of this process, which can be restarted, relabelled and asked what they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web

from pipeline.inference_pool import DueLook, InferencePool, PoolLooks, Seen, Server, why_waiting
from pipeline.inference_pool.pauses import PauseWhy, PoolPauses
from pipeline.messages import Sampling
from pipeline.redis_client import AsyncClient, command_client
from pipeline.scripts import sha
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from workers.agent.limits import ActiveTime
from workers.llm.backend import GenRequest
from workers.llm.connect import connect_backend
from workers.llm.scripted.faults import Fault
from workers.llm.scripted.options import Latency, ServerOptions, WireVersion
from workers.llm.scripted.server import ScriptedServer
from workers.stages.model_servers import ModelServers
from workers.stages.pool_keeper import PoolKeeper
from workers.stages.pooled_backend import PooledBackend

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(60)]
RUN, LEASE_S = "run1", 1.0
FIRST, SECOND = f"{RUN}/1.1", f"{RUN}/1.2"


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="rsk-") as name:
        yield Path(name)


@pytest.fixture
async def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    return InferencePool(client, settings.namespace, lease_s=LEASE_S)


@pytest.fixture
async def servers(pool: InferencePool) -> AsyncIterator[ModelServers]:
    async with ModelServers(pool, lease_s=LEASE_S, first_suspicion_s=0.05) as servers:
        yield servers


@pytest.fixture
def pauses(client: AsyncClient, settings: QueueSettings) -> PoolPauses:
    return PoolPauses(client, settings.namespace)


def a_server(folder: Path, name: str, *, per_token_s: float = 0.0, wire: WireVersion = "0.32") -> ScriptedServer:
    return ScriptedServer(ServerOptions(wire=wire, latency=Latency(per_token_s=per_token_s, sigma=0.0)), socket_path=folder / name)


@asynccontextmanager
async def keeping(client: AsyncClient, settings: QueueSettings, servers: ModelServers, *, period_s: float = 0.1) -> AsyncIterator[None]:
    """A keeper at work."""
    stop = asyncio.Event()
    keeper = PoolKeeper(PoolLooks(client, settings.namespace), servers.backend, period_s=period_s, round_s=0.02)
    task = asyncio.create_task(keeper.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


def a_way(servers: ModelServers, job: str = f"{RUN}.e0-i0.0", active: ActiveTime | None = None) -> PooledBackend:
    waiting = nullcontext if active is None else active.waiting
    return servers.for_job(RUN, "", job, 1, gate=lambda: None, progress=lambda within_s: None, waiting=waiting)


def a_call(name: str = "c1", tokens: int = 8) -> GenRequest:
    return GenRequest(request_id=name, prompt_ids=list(range(5, 45)), sampling=Sampling(), max_tokens=tokens, seed=1)


async def update(pauses: PoolPauses, label: str, *servers: ScriptedServer) -> None:
    """A weight update, as far as the pool and the labels go."""
    await pauses.take(RUN, 1, "t1", why="update", mode="keep", to=label, lease_s=30)
    for server in servers:
        server.engine.set_version(label)
    await pauses.resume(RUN, "t1", label, label=label, labels={server.url: label for server in servers})


async def standings(pool: InferencePool) -> list[str]:
    return [server.standing for server in (await pool.state(RUN)).servers]


async def test_an_answer_of_a_server_that_started_anew_between_two_looks_is_not_believed(
    folder: Path, pool: InferencePool, servers: ModelServers, pauses: PoolPauses
) -> None:
    """It came back with the weights it was started with, and the pool took it for synced until somebody looked: a second of tokens of an
    old policy under the label of the present."""
    async with a_server(folder, "a") as one, a_server(folder, "b") as other, a_way(servers) as way:
        await pool.attach(RUN, [Server(one.url), Server(other.url)])
        await update(pauses, FIRST, one, other)
        first = await way.generate(a_call(), timeout_s=20)
        assert [span.version for span in first.spans] == ["1.1"], "without the name of the run"
        its, others = (one, other) if first.server == one.url else (other, one)

        its.restart()

        second = await way.generate(a_call("c2"), timeout_s=20)
        assert (second.server, [span.version for span in second.spans]) == (others.url, ["1.1"])
        state = await pool.state(RUN)
        assert {server.url: server.standing for server in state.servers} == {its.url: "unsynced", others.url: "up"}
        assert (state.rerouted, way.told()["rerouted"]) == (1, 1)
        assert state.lost_tokens == way.told()["lost_tokens"] > 0
        assert sum(server.calls for server in state.servers) == 0


async def test_tokens_on_both_sides_of_an_update_are_believed(
    folder: Path, pool: InferencePool, servers: ModelServers, pauses: PoolPauses
) -> None:
    async with a_server(folder, "a", per_token_s=0.02) as server, a_way(servers) as way:
        await pool.attach(RUN, [Server(server.url)])
        await update(pauses, FIRST, server)
        call = asyncio.create_task(way.generate(a_call(tokens=64), timeout_s=20))
        await wait_until(lambda: server.engine.generation_tokens > 4 or call.done(), "it has sampled some")

        await update(pauses, SECOND, server)

        assert [span.version for span in (await call).spans] == ["1.1", "1.2"]


async def test_a_process_that_is_cut_off_has_its_call_aborted_at_the_server_within_a_lease_and_a_second(
    folder: Path, client: AsyncClient, settings: QueueSettings, redis_server: PrivateServer, pool: InferencePool, servers: ModelServers
) -> None:
    """Its connection to the server still stands: only an abort by id ends what it samples for nobody."""
    loop = asyncio.get_running_loop()
    async with a_server(folder, "a", per_token_s=5.0) as server:
        await pool.attach(RUN, [Server(server.url)])
        with LossyProxy(redis_server.socket) as proxy:
            cut_client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
            async with ModelServers(InferencePool(cut_client, settings.namespace, lease_s=LEASE_S), lease_s=LEASE_S) as cut:
                way = a_way(cut)
                call = asyncio.create_task(way.generate(a_call(tokens=64), timeout_s=50))
                await wait_until(lambda: len(server.engine.request_ids()) == 1 and server.engine.n_running == 1, "the call runs")
                async with keeping(client, settings, servers, period_s=0.5):
                    proxy.begin_outage()
                    began_s = loop.time()
                    await wait_until(lambda: not server.engine.request_ids(), "it was aborted", timeout_s=30)
                    took_s = loop.time() - began_s

                    async def is_counted() -> bool:
                        return (await pool.state(RUN)).aborted == 1

                    await wait_until(is_counted, "the keeper said so")
                proxy.heal()
                assert (await call).finish == "abort"
                await way.leave()
            await cut_client.aclose()
    assert took_s < LEASE_S + 1.0 + 0.5, "half a second for a busy machine"


async def test_a_server_that_does_not_answer_is_told_by_name_and_comes_back(
    folder: Path, client: AsyncClient, settings: QueueSettings, pool: InferencePool, servers: ModelServers
) -> None:
    """It was waited for until the wall deadline, with nobody told."""
    await pool.attach(RUN, [Server(f"unix:{folder / 'late'}")])
    async with keeping(client, settings, servers), a_way(servers) as way:
        call = asyncio.create_task(way.generate(a_call(), timeout_s=20))

        async def is_down() -> bool:
            return await standings(pool) == ["down"]

        await wait_until(is_down, "two looks found nobody")
        (why,) = why_waiting(await pool.state(RUN))
        assert why.what.startswith(f"No synced server (unix:{folder / 'late'} is down since ")
        assert "No such file or directory" in why.what
        assert not call.done()

        async with a_server(folder, "late") as server:
            assert (await call).server == server.url
            assert await standings(pool) == ["up"]


async def test_a_refused_connection_and_one_look_make_a_server_down(
    pool: InferencePool, client: AsyncClient, settings: QueueSettings
) -> None:
    """One node that is cut off takes a server from nobody: the look of another finds it well."""
    looks = PoolLooks(client, settings.namespace)
    await pool.attach(RUN, [Server("http://127.0.0.1:9")])
    await looks.due()
    await pool.report_refused(RUN, "http://127.0.0.1:9", "connection refused")
    assert await standings(pool) == ["up"]
    assert [look.url for look in await looks.due()] == ["http://127.0.0.1:9"], "it is looked at again at once"
    async with ModelServers(pool, lease_s=LEASE_S) as servers, keeping(client, settings, servers):
        await pool.report_refused(RUN, "http://127.0.0.1:9", "connection refused")

        async def is_down() -> bool:
            return await standings(pool) == ["down"]

        await wait_until(is_down, "the look failed, too", timeout_s=20)


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5", "sglang-0.5.10"])
async def test_an_engine_that_a_dead_trainer_left_paused_goes_on_when_its_label_is_proof(
    folder: Path,
    client: AsyncClient,
    settings: QueueSettings,
    pool: InferencePool,
    servers: ModelServers,
    pauses: PoolPauses,
    wire: WireVersion,
) -> None:
    """And the calls frozen at one whose weights nobody knows are aborted, keep what they have, and go on elsewhere; where the server does
    not say which weights made a token, they begin anew. An older SGLang does not say that it is paused: it stood, with its calls, until the
    next update."""
    async with a_server(folder, "a", per_token_s=0.05, wire=wire) as proven, a_server(folder, "b", per_token_s=0.05, wire=wire) as torn:
        await pool.attach(RUN, [Server(proven.url), Server(torn.url)])
        await update(pauses, FIRST, proven, torn)
        ways = [a_way(servers, f"{RUN}.e0-i0.{number}") for number in range(2)]
        calls = [asyncio.create_task(way.generate(a_call(f"c{number}", 40), timeout_s=30)) for number, way in enumerate(ways)]
        await wait_until(lambda: proven.engine.generation_tokens > 2 and torn.engine.generation_tokens > 2, "both sample")

        await pauses.take(RUN, 1, "t2", why="update", mode="keep", to=SECOND, lease_s=0.5)
        for server in (proven, torn):
            await server.engine.pause("keep", clear_cache=True)
        torn.engine.set_version(f"{RUN}/updating-t2")
        async with keeping(client, settings, servers):
            results = [await call for call in calls]

        assert sorted(result.finish for result in results) == ["length" if wire == "sglang-0.5.10" else "abort", "length"]
        assert {span.version for result in results for span in result.spans} == {"1.1"}
        assert {server.url: server.standing for server in (await pool.state(RUN)).servers} == {proven.url: "up", torn.url: "unsynced"}
        for way in ways:
            await way.leave()


async def test_the_time_of_a_call_stands_still_while_its_run_is_paused(
    folder: Path, pool: InferencePool, servers: ModelServers, pauses: PoolPauses
) -> None:
    """An update of half a minute used up the time-out of every call that it froze, and a good part of their jobs' active time."""
    active = ActiveTime(60.0)
    async with a_server(folder, "a", per_token_s=0.02) as server, a_way(servers, active=active) as way:
        await pool.attach(RUN, [Server(server.url)])
        await update(pauses, FIRST, server)
        call = asyncio.create_task(way.generate(a_call(tokens=64), timeout_s=2.5))
        await wait_until(lambda: server.engine.generation_tokens > 1, "it samples")
        await pauses.take(RUN, 1, "t2", why="update", mode="keep", to=SECOND, lease_s=30)
        await server.engine.pause("keep", clear_cache=True)
        await wait_until(lambda: active.is_waiting or call.done(), "its clock stands", timeout_s=10)
        left_s = active.left_s
        await asyncio.wait([call], timeout=3.0)  # longer than its time-out
        assert not call.done()
        assert active.left_s == left_s

        await pauses.resume(RUN, "t2", "u2", label=SECOND, labels={server.url: FIRST})
        server.engine.resume()

        assert len((await call).output_ids) <= 64
        assert active.left_s < left_s


async def test_jobs_that_wait_are_woken_by_what_changed(
    folder: Path, pool: InferencePool, servers: ModelServers, pauses: PoolPauses, client: AsyncClient
) -> None:
    """Hundreds of jobs wait for an update to end: one watcher asks Redis for all of them."""
    async with a_server(folder, "a") as server:
        await pool.attach(RUN, [Server(server.url)])
        await update(pauses, FIRST, server)
        await pauses.take(RUN, 1, "t2", why="update", mode="keep", to=SECOND, lease_s=30)
        ways = [a_way(servers, f"{RUN}.e0-i0.{number}") for number in range(100)]
        calls = [asyncio.create_task(way.generate(a_call(f"c{number}", 1), timeout_s=20)) for number, way in enumerate(ways)]
        await asyncio.wait(calls, timeout=0.5)
        await client.config_resetstat()
        await asyncio.wait(calls, timeout=2.0)
        scripts = (await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"]
        assert not any(call.done() for call in calls)

        server.engine.set_version(SECOND)
        await pauses.resume(RUN, "t2", "u2", label=SECOND, labels={server.url: SECOND})

        results = await asyncio.gather(*calls)
        assert {span.version for result in results for span in result.spans} == {"1.2"}
        assert scripts <= 20, "renewals, and no question a job"
        for way in ways:
            await way.leave()


async def test_clearing_and_draining_while_jobs_run_moves_them_at_their_next_call_or_never(
    folder: Path, pool: InferencePool, servers: ModelServers
) -> None:
    async with a_server(folder, "a") as one, a_server(folder, "b") as other, a_way(servers) as way:
        await pool.attach(RUN, [Server(one.url)])
        assert (await way.generate(a_call(), timeout_s=20)).server == one.url
        await pool.drain(RUN, [one.url])
        await pool.attach(RUN, [Server(other.url)])
        assert (await way.generate(a_call("c2"), timeout_s=20)).server == one.url, "a draining server keeps its jobs"

        await pool.detach(RUN, [one.url, other.url])
        call = asyncio.create_task(way.generate(a_call("c3"), timeout_s=20))
        await asyncio.wait([call], timeout=0.3)
        assert not call.done()
        await pool.attach(RUN, [Server(other.url)])

        assert (await call).server == other.url
        assert way.told()["lost_tokens"] >= 32, "its prefix was at the first"


async def test_a_call_that_is_cancelled_while_its_begin_is_on_the_way_is_not_in_flight(
    folder: Path, settings: QueueSettings, redis_server: PrivateServer, pool: InferencePool
) -> None:
    """It began in Redis after its job was gone. An update waited for it to end, for as long as the worker lived."""
    async with a_server(folder, "a") as server:
        await pool.attach(RUN, [Server(server.url)])
        with LossyProxy(redis_server.socket) as proxy:
            client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
            patient = InferencePool(client, settings.namespace, lease_s=30.0)
            async with ModelServers(patient, lease_s=30.0) as servers, a_way(servers) as way:
                await way.generate(a_call(), timeout_s=20)
                asked = len(server.requests)
                trap = proxy.hold_reply(containing=sha("pool_begin_call").encode())
                call = asyncio.create_task(way.generate(a_call("c2"), timeout_s=20))
                await trap.sprung()
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                assert [one.calls for one in (await pool.state(RUN)).servers] == [1]

                trap.release()

                async def nothing_in_flight() -> bool:
                    return [one.calls for one in (await pool.state(RUN)).servers] == [0]

                await wait_until(nothing_in_flight, "its end was said, too")
                assert len(server.requests) == asked
            await client.aclose()


async def test_without_redis_no_call_begins(
    folder: Path, settings: QueueSettings, redis_server: PrivateServer, pool: InferencePool
) -> None:
    """It has an assignment and knows its server: what it does not know is whether the run is paused."""
    async with a_server(folder, "a") as server:
        await pool.attach(RUN, [Server(server.url)])
        with LossyProxy(redis_server.socket) as proxy:
            client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
            async with (
                ModelServers(InferencePool(client, settings.namespace, lease_s=30.0), lease_s=30.0) as servers,
                a_way(servers) as way,
            ):
                await way.generate(a_call(), timeout_s=20)
                asked = len(server.requests)
                proxy.begin_outage()
                call = asyncio.create_task(way.generate(a_call("c2"), timeout_s=20))
                await asyncio.wait([call], timeout=1.0)
                assert len(server.requests) == asked

                proxy.heal()

                assert (await call).server == server.url
            await client.aclose()


async def test_a_call_at_a_server_that_went_silent_goes_on_at_another(folder: Path, client: AsyncClient, settings: QueueSettings) -> None:
    """Its machine had lost its power, and no connection broke: the job waited for half an hour, the longest that an answer may take, with
    its place and its slot, while a server beside it idled."""
    pool, looks = InferencePool(client, settings.namespace, lease_s=30.0), PoolLooks(client, settings.namespace)
    async with (
        a_server(folder, "a", per_token_s=60.0) as silent,
        a_server(folder, "b") as well,
        ModelServers(pool, lease_s=30.0, silent_s=0.5) as servers,
        a_way(servers) as way,
    ):
        await pool.attach(RUN, [Server(silent.url)])
        call = asyncio.create_task(way.generate(a_call(), timeout_s=1800))
        await wait_until(lambda: silent.engine.n_running == 1, "it samples")
        await pool.attach(RUN, [Server(well.url)])
        (its,) = [look for look in await looks.due() if look.url == silent.url]

        for _ in range(2):
            await looks.looked(its, Seen(alive=False, why="no answer within 5 s"))

        async with asyncio.timeout(10):
            assert (await call).server == well.url
        assert not silent.engine.request_ids(), "should it wake up, it does not sample for nobody"
        assert {server.url: server.calls for server in (await pool.state(RUN)).servers} == {silent.url: 0, well.url: 0}


@pytest.mark.parametrize(("why", "mode"), [("leaving", "abort"), ("leaving", "wait"), ("update", "abort"), ("update", "keep")])
async def test_a_pause_that_waits_for_calls_does_not_wait_for_those_at_a_server_that_went_silent(
    folder: Path, client: AsyncClient, settings: QueueSettings, pauses: PoolPauses, why: PauseWhy, mode: str
) -> None:
    """A machine lost its power, and the engines were to go away. The clock of the call there stood, since its run was paused; the pause
    stood, since the call had not ended. Neither ever did."""
    pool, looks = InferencePool(client, settings.namespace, lease_s=30.0), PoolLooks(client, settings.namespace)
    async with (
        a_server(folder, "a", per_token_s=60.0) as silent,
        ModelServers(pool, lease_s=30.0, silent_s=0.001) as servers,
        a_way(servers) as way,
    ):
        await pool.attach(RUN, [Server(silent.url)])
        call = asyncio.create_task(way.generate(a_call(), timeout_s=1800))
        await wait_until(lambda: silent.engine.n_running == 1, "it samples")
        (its,) = await looks.due()
        await pauses.take(RUN, 1, "t1", why=why, mode=mode, to="", lease_s=60)
        watch = servers.join(RUN)
        await wait_until(lambda: watch.is_paused, "its process has seen the pause")
        for _ in range(2):
            await looks.looked(its, Seen(alive=False, why="no answer within 5 s"))

        async def has_ended() -> bool:
            return await pauses.stop_calls(RUN, [silent.url], abort=False) == {silent.url: (0, 0)}

        if mode == "keep":
            await pool.attach(RUN, [Server("unix:/elsewhere")])  # another change, seen by the same watcher
            await asyncio.wait_for(watch.next_change.wait(), 10)
            assert not await has_ended(), "it loads weights, perhaps, and its calls stand"
        else:
            await wait_until(has_ended, "the call was given up", timeout_s=20)
        assert not call.done(), "its job goes on elsewhere when the pause ends"
        servers.leave(RUN)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_server_that_is_busy_for_longer_than_a_few_tries_take_ends_no_attempt(
    folder: Path, pool: InferencePool, servers: ModelServers
) -> None:
    """An engine with a bounded queue turned away what the first second of a step brought, and those jobs had failed in the next one."""
    async with a_server(folder, "a") as server, a_way(servers) as way:
        await pool.attach(RUN, [Server(server.url)])
        await way.generate(a_call("c0"), timeout_s=20)
        server.faults.arm(Fault(kind="status", status=503, message="the request queue is full", times=6))

        assert (await way.generate(a_call(), timeout_s=20)).server == server.url
        assert way.calls_again == 6


@pytest.mark.parametrize("wire", ["0.31", "0.32", "sglang-0.5"])
async def test_a_keeper_that_has_never_called_a_server_ends_a_call_at_one_that_stands(
    folder: Path, client: AsyncClient, settings: QueueSettings, servers: ModelServers, pool: InferencePool, wire: WireVersion
) -> None:
    """The keeper asked the server what it can do before it aborted, which samples a token; the engine was paused, and sampled none. The
    call of the process that had died stood there until somebody resumed the engine."""
    options = ServerOptions(wire=wire, latency=Latency(per_token_s=60.0, sigma=0.0))
    dead = InferencePool(client, settings.namespace, lease_s=0.2)
    async with ScriptedServer(options, socket_path=folder / "a") as server:
        await pool.attach(RUN, [Server(server.url)])
        async with ModelServers(dead, lease_s=60.0) as theirs, connect_backend(server.url) as their_client:
            way = a_way(theirs)
            call = asyncio.create_task(way.generate(a_call(), timeout_s=60))
            await wait_until(lambda: server.engine.n_running == 1, "it samples")
            await their_client.control.pause("keep")
            async with keeping(client, settings, servers):
                await wait_until(lambda: not server.engine.request_ids(), "the call was aborted", timeout_s=20)
            assert server.engine.paused, "it stands still"
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)


@asynccontextmanager
async def answering(path: Path, answers: dict[str, object]) -> AsyncIterator[str]:
    """A server that answers these paths with JSON, or with text as it stands; its address."""

    async def answer(request: web.Request) -> web.Response:
        body = answers.get(request.path)
        if body is None:
            return web.Response(status=404)
        return web.Response(text=body) if isinstance(body, str) else web.json_response(body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(path)).start()
        yield f"unix:{path}"
    finally:
        await runner.cleanup()


async def test_no_figure_that_a_server_tells_ends_a_keeper(
    folder: Path, client: AsyncClient, settings: QueueSettings, pool: InferencePool, servers: ModelServers
) -> None:
    """One page of metrics with two numbers whose sum is infinite ended all RUN workers of a fleet, one keeper after the other."""
    huge = 'vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\nvllm:kv_cache_usage_perc 7\n'
    load = {"num_running_reqs": 1e308, "num_waiting_reqs": 0, "token_usage": 0.5}
    async with (
        answering(folder / "vllm", {"/health": "", "/version": {"version": "0.32.0"}, "/metrics": huge}) as vllm,
        answering(folder / "sglang", {"/model_info": {"model_path": "m"}, "/ready": "", "/v1/loads": {"loads": [load, load]}}) as sglang,
        a_server(folder, "good") as good,
        keeping(client, settings, servers),
    ):
        await pool.attach(RUN, [Server(vllm), Server(sglang), Server(good.url)])

        async def are_known() -> bool:
            return {server.url: server.standing for server in (await pool.state(RUN)).servers} == {
                vllm: "up",
                sglang: "down",
                good.url: "up",
            }

        await wait_until(are_known, "each is judged by itself")
        looked_ms = {server.url: server.looked_ms for server in (await pool.state(RUN)).servers}

        async def are_looked_at_again() -> bool:
            return all(server.looked_ms > looked_ms[server.url] for server in (await pool.state(RUN)).servers)

        await wait_until(are_looked_at_again, "the keeper goes on")
        state = {server.url: server for server in (await pool.state(RUN)).servers}
        assert (state[vllm].running, state[vllm].kv_used) == (0, -1.0)
        assert state[sglang].why.startswith("its answer cannot be read: OverflowError")


async def test_a_label_is_believed_only_of_the_start_that_its_trainer_gave_it_to(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, pauses: PoolPauses
) -> None:
    """A server that restarted between the proof and the label bears it falsely, and the trainer that would have known may be dead."""
    looks = PoolLooks(client, settings.namespace)

    async def stands(label: str, started: str) -> str:
        await looks.looked(DueLook(RUN, "http://a", True, "", ()), Seen(alive=True, label=label, started=started))
        return (await pool.state(RUN)).servers[0].standing

    await pool.attach(RUN, [Server("http://a")])
    await pauses.take(RUN, 1, "t1", why="update", mode="keep", to=FIRST, lease_s=30)
    await pauses.resume(RUN, "t1", FIRST, label=FIRST, labels={"http://a": FIRST}, starts={"http://a": "one"})

    assert [await stands(FIRST, started) for started in ("one", "two", "one", "")] == ["up", "unsynced", "up", "up"]
    await pool.attach(RUN, [Server("http://a", version=FIRST)])
    assert await stands(FIRST, "two") == "up", "who attaches it with its label has loaded it"


async def test_a_server_without_labels_that_restarted_before_its_update_is_up_after_it(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, pauses: PoolPauses
) -> None:
    """No keeper had seen its new start yet; the first one that did, after the update, took it for another restart, and it stood idle."""
    looks = PoolLooks(client, settings.namespace)

    async def stands(started: str) -> str:
        await looks.looked(DueLook(RUN, "http://a", True, "", ()), Seen(alive=True, started=started))
        return (await pool.state(RUN)).servers[0].standing

    await pool.attach(RUN, [Server("http://a")])
    assert await stands("one") == "up"
    await pauses.take(RUN, 1, "t1", why="update", mode="wait", to=FIRST, lease_s=30)
    await pauses.resume(RUN, "t1", FIRST, label=FIRST, labels={"http://a": FIRST}, starts={"http://a": "two"})

    assert await stands("two") == "up"
    assert await stands("three") == "unsynced"
