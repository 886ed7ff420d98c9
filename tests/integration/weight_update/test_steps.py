"""The steps of a weight update, one server or some, no jobs: what each leaves behind, whatever goes wrong (ADR 13)."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from pipeline.errors import InvalidRequest, StaleIncarnation
from pipeline.inference_pool import InferencePool, PoolLooks, Seen
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.keys import Keys
from pipeline.messages import Sampling
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import sha
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from tests.integration.weight_update.conftest import LEASE_S
from tests.integration.weight_update.engines import Engines
from tests.integration.weight_update.loading import OLD, load
from trainer_client import PauseHeld, PauseLost, Run, ServersToLoad, UpdateFailed, connect, connect_blocking
from trainer_client.weight_update import MODES, UpdateMode
from workers.llm.backend import GenRequest
from workers.llm.connect import connect_backend
from workers.llm.scripted import Fault, ServerOptions
from workers.llm.scripted.options import Latency, WireVersion

pytestmark = pytest.mark.one_server


async def load_all(servers: ServersToLoad, weights: str) -> None:
    for server in servers:
        await load(server.url, weights)


async def standings(run: Run) -> dict[str, tuple[str, str]]:
    return {server.url: (server.standing, server.version) for server in await run.servers.list()}


async def is_paused(run: Run) -> bool:
    return (await run.servers.state()).is_paused


@pytest.mark.parametrize("mode", MODES)
async def test_an_update_loads_labels_and_resumes_all_servers(run: Run, engines: Engines, mode: UpdateMode) -> None:
    urls = [await engines.start(name) for name in ("a", "b")]
    await run.servers.attach(urls)

    async with run.weight_update(3, mode=mode) as servers:
        assert [(server.url, server.label) for server in servers] == [(url, "default") for url in urls]
        assert await is_paused(run)
        for name in ("a", "b"):
            assert engines[name].engine.paused == mode
            assert "/updating-" in engines[name].engine.version
        await load_all(servers, "three")

    assert servers.failed == {}
    assert servers.version == run.policy_version == f"{run.incarnation}.3"
    assert not await is_paused(run)
    assert await standings(run) == dict.fromkeys(urls, ("up", f"run1/{run.incarnation}.3"))
    for name in ("a", "b"):
        engine = engines[name].engine
        assert (engine.version, engine.weights, engine.paused) == (f"run1/{run.incarnation}.3", "three", None)


async def test_servers_of_a_trainer_get_no_call_before_their_first_update(run: Run, pool: InferencePool, engines: Engines) -> None:
    url = await engines.start("a")
    await run.servers.attach(url, control="trainer")
    assert await pool.assign("run1", "", "run1.j.0", 1) is None
    assert "no weight update yet" in (await run.servers.why_not())[url]

    async with run.weight_update(0) as servers:
        await load_all(servers, "zero")

    assert await pool.assign("run1", "", "run1.j.0", 1) is not None


async def test_a_shared_server_is_nobodys_to_update(run: Run, engines: Engines) -> None:
    judge, mine = await engines.start("judge"), await engines.start("mine")
    await run.servers.attach(judge, shared=True)
    await run.servers.attach(mine)

    async with run.weight_update(1) as servers:
        assert [server.url for server in servers] == [mine]

    assert engines["judge"].engine.version == "default"
    assert (await standings(run))[judge] == ("up", "")


async def test_a_block_that_raises_leaves_no_label_and_the_next_update_mends(run: Run, engines: Engines) -> None:
    url = await engines.start("a")
    await run.servers.attach(url)

    async def breaks() -> None:
        async with run.weight_update(1) as servers:
            await load_all(servers, "half of one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()

    assert not await is_paused(run)
    assert run.policy_version == ""
    assert (await standings(run))[url][0] == "unsynced"
    assert "an update began and did not end there" in (await run.servers.why_not())[url]

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
    assert await standings(run) == {url: ("up", f"run1/{run.incarnation}.1")}
    assert engines["a"].engine.paused is None


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5.10", "sglang-0.5"])
async def test_an_update_that_waits_for_calls_does_not_wait_for_those_that_one_before_froze(
    run: Run, engines: Engines, wire: WireVersion
) -> None:
    """An older SGLang does not say that it is paused: the next update waited for ever for calls that it held frozen."""
    url = await engines.start("a", ServerOptions(wire=wire, latency=Latency(per_token_s=0.05, sigma=0.0)))
    await run.servers.attach(url)
    async with connect_backend(url) as backend:
        request = GenRequest(request_id="c1", prompt_ids=[1, 2, 3], sampling=Sampling(), max_tokens=400, seed=1)
        call = asyncio.create_task(backend.generate(request, timeout_s=60))
        await wait_until(lambda: engines["a"].engine.generation_tokens > 2, "it samples")
        with pytest.raises(ZeroDivisionError):
            async with run.weight_update(1, mode="keep"):
                raise ZeroDivisionError

        async with asyncio.timeout(10), run.weight_update(1, mode="wait") as servers:
            await load_all(servers, "one")

        assert servers.failed == {}
        assert (await call).finish == "abort"


async def test_a_server_that_restarts_in_the_block_gets_no_label(run: Run, engines: Engines) -> None:
    """It was loaded, restarted, and held its old weights again: the label that it then got was a lie about every token."""
    urls = {name: await engines.start(name) for name in ("a", "b")}
    await run.servers.attach(list(urls.values()))

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        engines["a"].restart()

    assert list(servers.failed) == [urls["a"]]
    assert "restarted" in servers.failed[urls["a"]]
    assert engines["a"].engine.version == "default"
    found = await standings(run)
    assert found[urls["b"]] == ("up", f"run1/{run.incarnation}.1")
    assert found[urls["a"]][0] == "unsynced"


async def test_a_server_that_restarts_while_it_is_labelled_is_found_out(run: Run, engines: Engines) -> None:
    """Between the proof and the label there is a moment. A server that restarts in it takes a label for weights that it does not hold."""
    url = await engines.start("a")
    await run.servers.attach([url, await engines.start("b")])

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        engines["a"].faults.arm(Fault(kind="restart", path="/update_weight_version"))

    assert engines["a"].engine.weights == OLD
    assert "/updating-" in engines["a"].engine.version, "the label was taken back: a keeper would have believed it"
    assert "restarted" in servers.failed[url]
    assert (await standings(run))[url][0] == "unsynced"


@pytest.mark.parametrize("wire", ["sglang-0.5.10", "sglang-0.5"])
async def test_no_sglang_takes_a_label_for_another_start(run: Run, engines: Engines, wire: WireVersion) -> None:
    """Before 0.5.19 it says neither when it started nor that it is paused. One that restarted in the moment between the proof and the label
    had the label by then, answered the second proof with it, and was taken for loaded."""
    url, other = await engines.start("a", ServerOptions(wire=wire)), await engines.start("b", ServerOptions(wire=wire))
    await run.servers.attach([url, other])

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        engines["a"].faults.arm(Fault(kind="restart", path="/update_weight_version"))

    assert list(servers.failed) == [url]
    assert engines["a"].engine.weights != "one"
    assert engines["a"].engine.version != f"run1/{run.incarnation}.1"
    found = await standings(run)
    assert found[url][0] == "unsynced"
    assert found[other] == ("up", f"run1/{run.incarnation}.1")
    assert engines["b"].engine.weights == "one"


async def test_a_server_that_names_no_start_and_keeps_no_connection_open_gets_no_label(run: Run, engines: Engines) -> None:
    """Nothing would tell that it restarted between the proof and the label; so it has none, and says why."""
    url, other = await engines.start("a", ServerOptions(wire="sglang-0.5.10", keepalive_s=0.0)), await engines.start("b")
    await run.servers.attach([url, other])

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")

    assert list(servers.failed) == [url]
    assert "keeps none open" in servers.failed[url]
    assert "/updating-" in engines["a"].engine.version
    assert (await standings(run))[url][0] == "unsynced"


async def test_a_server_that_tells_neither_label_nor_start_is_not_loaded(run: Run, engines: Engines) -> None:
    """The pool kept its label for it. When it restarted nothing showed that, and its old weights bore the label for good."""
    url, other = await engines.start("a", ServerOptions(dev_mode=False)), await engines.start("b")
    await run.servers.attach([url, other])
    engines["a"].faults.arm(Fault(kind="status", path="/metrics", status=404, times=10_000))

    async with run.weight_update(1, mode="wait") as servers:
        assert [server.url for server in servers] == [other]
        await load_all(servers, "one")

    assert "neither which weights" in servers.failed[url]
    assert (await standings(run))[url][0] == "unsynced"


async def test_a_label_that_is_not_answered_is_taken_back(run: Run, engines: Engines) -> None:
    """It may have arrived, at a server that started anew meanwhile: a keeper would believe it."""
    url = await engines.start("a")
    await run.servers.attach([url, await engines.start("b")])

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        engines["a"].faults.arm(Fault(kind="hang", path="/update_weight_version"))

    assert "/updating-" in engines["a"].engine.version
    assert "no answer" in servers.failed[url]
    assert (await standings(run))[url][0] == "unsynced"


async def test_a_server_with_a_label_that_cannot_be_taken_back_leaves_the_run(run: Run, engines: Engines) -> None:
    url, other = await engines.start("a"), await engines.start("b")
    await run.servers.attach([url, other])

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        engines["a"].faults.arm(Fault(kind="restart", path="/update_weight_version"))
        engines["a"].faults.arm(Fault(kind="status", path="/update_weight_version", after=1))

    assert engines["a"].engine.version == f"run1/{run.incarnation}.1"
    assert list(servers.failed) == [url]
    assert list(await standings(run)) == [other]


async def test_the_only_server_leaves_the_run_too_when_its_false_label_cannot_be_taken_back(run: Run, engines: Engines) -> None:
    """The update fails as a whole then, and a run that had no update before allows any label: the next look would believe this one."""
    url = await engines.start("a")
    await run.servers.attach(url)

    async def update() -> None:
        async with run.weight_update(1) as servers:
            await load_all(servers, "one")
            engines["a"].faults.arm(Fault(kind="restart", path="/update_weight_version"))
            engines["a"].faults.arm(Fault(kind="status", path="/update_weight_version", after=1))

    with pytest.raises(UpdateFailed, match="while it was labelled"):
        await update()

    assert engines["a"].engine.version == f"run1/{run.incarnation}.1"
    assert await standings(run) == {}


async def test_a_server_that_is_gone_is_told_and_the_others_are_updated(run: Run, engines: Engines) -> None:
    url, gone = await engines.start("a"), engines.url("gone")
    await run.servers.attach([url, gone])

    async with run.weight_update(1) as servers:
        assert [server.url for server in servers] == [url]
        assert "does not answer" in servers.failed[gone]
        await load_all(servers, "one")

    assert (await standings(run))[url] == ("up", f"run1/{run.incarnation}.1")
    assert (await standings(run))[gone][0] != "up"


async def test_a_server_that_dies_before_it_is_labelled_is_told(run: Run, engines: Engines) -> None:
    urls = {name: await engines.start(name) for name in ("a", "b")}
    await run.servers.attach(list(urls.values()))

    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        await engines.die("a")

    assert "does not answer" in servers.failed[urls["a"]]
    assert (await standings(run))[urls["b"]][0] == "up"


async def test_a_server_that_the_trainer_could_not_load_gets_no_label(run: Run, engines: Engines) -> None:
    urls = {name: await engines.start(name) for name in ("a", "b")}
    await run.servers.attach(list(urls.values()))

    async with run.weight_update(1) as servers:
        await load(urls["a"], "one")
        servers.fail(urls["b"], "out of memory")
        with pytest.raises(InvalidRequest, match="not among"):
            servers.fail("unix:/elsewhere", "?")

    assert servers.failed == {urls["b"]: "out of memory"}
    assert (await standings(run))[urls["b"]][0] == "unsynced"
    assert (await standings(run))[urls["a"]] == ("up", f"run1/{run.incarnation}.1")


async def test_an_update_in_which_all_fail_raises_and_says_why_of_each(run: Run, engines: Engines) -> None:
    url = await engines.start("a")
    await run.servers.attach(url)

    async def restarts() -> None:
        async with run.weight_update(1) as servers:
            await load_all(servers, "one")
            engines["a"].restart()

    with pytest.raises(UpdateFailed, match="restarted") as failed:
        await restarts()
    assert list(failed.value.servers) == [url]
    assert run.policy_version == ""

    await engines.die("a")
    with pytest.raises(UpdateFailed, match="does not answer"):
        async with run.weight_update(1):
            pytest.fail("there is nothing to load")
    assert not await is_paused(run)


async def test_an_update_without_servers_is_refused(run: Run) -> None:
    with pytest.raises(InvalidRequest, match="no servers"):
        async with run.weight_update(1):
            pytest.fail("there is nothing to load")
    assert not await is_paused(run)


async def test_keep_is_refused_of_a_server_without_a_pause_and_nothing_has_changed(run: Run, engines: Engines) -> None:
    """The one that could be paused goes on under its old label: nobody has touched its weights."""
    able = await engines.start("able")
    unable = await engines.start("unable", ServerOptions(dev_mode=False))
    await run.servers.attach([able, unable])
    engines["able"].engine.set_version("mine")

    with pytest.raises(InvalidRequest, match="abort"):
        async with run.weight_update(1):
            pytest.fail("it cannot be entered")

    assert (engines["able"].engine.version, engines["able"].engine.paused) == ("mine", None)
    assert not await is_paused(run)
    async with run.weight_update(1, mode="wait") as servers:
        assert {server.url for server in servers} == {able, unable}
    assert (await standings(run))[unable] == ("up", f"run1/{run.incarnation}.1"), "it keeps no label, so the pool does"


async def test_a_version_never_goes_back(run: Run, engines: Engines) -> None:
    await run.servers.attach(await engines.start("a"))
    async with run.weight_update(5) as servers:
        await load_all(servers, "five")

    with pytest.raises(InvalidRequest, match="5 or more"):
        async with run.weight_update(4):
            pytest.fail("it cannot be entered")

    assert engines["a"].engine.version == f"run1/{run.incarnation}.5"
    async with run.weight_update(5) as servers:
        await load_all(servers, "five")
    assert engines["a"].engine.paused is None


async def test_an_update_begins_though_redis_was_away_for_longer_than_a_lease(
    redis_server: PrivateServer, settings: QueueSettings, engines: Engines
) -> None:
    """The lease was counted from the first try, which nobody had answered: it was over before it began, and the update failed."""
    with LossyProxy(redis_server.socket) as proxy:
        async with connect(settings.model_copy(update={"redis_url": proxy.url}), run="run1") as run:
            await run.servers.attach(await engines.start("a"))

            async def update() -> ServersToLoad:
                async with run.weight_update(1) as servers:
                    await load_all(servers, "one")
                return servers

            proxy.begin_outage()
            away_until_s = time.monotonic() + 1.2 * LEASE_S
            updating = asyncio.create_task(update())
            await wait_until(lambda: time.monotonic() > away_until_s, "it is away for longer than a lease")
            proxy.heal()

            assert (await updating).failed == {}
            assert engines["a"].engine.version == f"run1/{run.incarnation}.1"


async def test_an_update_that_is_cancelled_as_it_takes_the_pause_leaves_none(
    redis_server: PrivateServer, settings: QueueSettings, engines: Engines
) -> None:
    """The pause was Redis's to give, and the answer on its way: the next update was refused for a lease, by one that nobody had."""
    with LossyProxy(redis_server.socket) as proxy:
        async with connect(settings.model_copy(update={"redis_url": proxy.url}), run="run1") as run:
            await run.servers.attach(await engines.start("a"))
            trap = proxy.hold_reply(containing=sha("pool_pause").encode())
            updating = asyncio.create_task(run.weight_update(1).__aenter__())
            await trap.sprung()

            updating.cancel()
            await asyncio.gather(updating, return_exceptions=True)
            trap.release()

            assert not await is_paused(run)
            async with run.weight_update(1) as servers:
                await load_all(servers, "one")
            assert servers.failed == {}


async def test_one_update_at_a_time(run: Run, engines: Engines) -> None:
    await run.servers.attach(await engines.start("a"))
    async with run.weight_update(1):
        with pytest.raises(PauseHeld):
            async with run.weight_update(1):
                pytest.fail("it cannot be entered")
        with pytest.raises(PauseHeld):
            async with run.engines_away():
                pytest.fail("it cannot be entered")
    assert engines["a"].engine.version == f"run1/{run.incarnation}.1"


async def test_a_trainer_that_blocks_its_loop_keeps_its_pause(run: Run, engines: Engines) -> None:
    """Broadcasting weights holds the interpreter's loop for as long as it takes; the lease was renewed by the loop, and lapsed."""
    await run.servers.attach(await engines.start("a"))
    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        time.sleep(1.5 * LEASE_S)  # noqa: ASYNC251  # the loop stands: that is what is tested

    assert engines["a"].engine.version == f"run1/{run.incarnation}.1"


async def test_a_trainer_whose_lease_was_lost_labels_nothing(
    run: Run, engines: Engines, client: AsyncClient, settings: QueueSettings
) -> None:
    await run.servers.attach(await engines.start("a"))

    async def is_not_heard() -> None:
        async with run.weight_update(1) as servers:
            await load_all(servers, "one")
            # as if Redis had not heard of it for a lease
            await ask(client, "HSET", Keys.of_pool(settings.namespace).pool_run("run1"), "pause.until", 1)

    with pytest.raises(PauseLost):
        await is_not_heard()

    assert "/updating-" in engines["a"].engine.version
    assert run.policy_version == ""


async def test_a_successor_waits_for_the_lease_of_the_older_trainer_which_then_labels_nothing(
    run: Run, engines: Engines, settings: QueueSettings
) -> None:
    """The older trainer hung in its block. Its successor loads the same servers; when the older one wakes it must not touch a label."""
    await run.servers.attach(await engines.start("a"))
    older = run.weight_update(7)
    servers = await older.__aenter__()
    await load_all(servers, "seven of the older one")

    async with connect(settings, run="run1") as successor:
        async with successor.weight_update(2) as mended:
            await load_all(mended, "two")

        with pytest.raises(PauseLost):
            await older.__aexit__(None, None, None)

        assert engines["a"].engine.version == f"run1/{successor.incarnation}.2"
        assert engines["a"].engine.weights == "two"
        assert (await standings(successor))[engines.url("a")] == ("up", f"run1/{successor.incarnation}.2")
        with pytest.raises(StaleIncarnation):
            async with run.weight_update(8):
                pytest.fail("it is fenced off")


async def test_what_a_dead_trainer_had_labelled_stays_allowed_after_the_next_pause(
    run: Run, engines: Engines, client: AsyncClient, settings: QueueSettings
) -> None:
    """It died after its labels and before the pool knew them. The servers went on when its lease had run out; the next pause, one without
    an update, forgot why they were allowed to."""
    urls = [await engines.start(name) for name in ("a", "b")]
    await run.servers.attach(urls)
    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
    dying = PoolPauses(client, settings.namespace)
    await dying.take("run1", run.incarnation, "dying", why="update", mode="keep", to="run1/1.2", lease_s=60)
    await dying.hold("run1", "dying", dict.fromkeys(urls, "run1/1.2"), lease_s=60)
    await ask(client, "HSET", Keys.of_pool(settings.namespace).pool_run("run1"), "pause.until", 1)
    assert {standing for standing, _ in (await standings(run)).values()} == {"up"}

    async with run.engines_away(weights_kept=True):
        pass

    assert {standing for standing, _ in (await standings(run)).values()} == {"up"}
    assert (await run.servers.state()).allowed.highest == "run1/1.2"


async def test_a_look_from_before_the_end_of_an_update_is_not_believed_after_it(
    run: Run, engines: Engines, client: AsyncClient, settings: QueueSettings
) -> None:
    """A keeper saw a paused engine that was being changed, and said so when the update had ended: the calls that went on there by then were
    aborted, and its jobs went elsewhere."""
    url = await engines.start("a")
    await run.servers.attach(url)
    looks = PoolLooks(client, settings.namespace)
    async with run.weight_update(1) as servers:
        await load_all(servers, "one")
        (look,) = await looks.due()
        seen = Seen(alive=True, label=engines["a"].engine.version, paused=True)

    assert (await looks.looked(look, seen)).now == "up"

    assert await standings(run) == {url: ("up", f"run1/{run.incarnation}.1")}
    (again,) = await looks.due()
    assert again.url == url, "another look is due at once"


async def test_two_runs_with_updates_of_their_own_never_meet(run: Run, engines: Engines, settings: QueueSettings) -> None:
    mine, theirs = await engines.start("mine"), await engines.start("theirs")
    async with connect(settings, run="run2") as other:
        await run.servers.attach(mine)
        await other.servers.attach(theirs)
        with pytest.raises(InvalidRequest, match="run2"):
            await run.servers.attach(theirs)

        async with run.weight_update(1) as first, other.weight_update(9) as second:
            assert ([server.url for server in first], [server.url for server in second]) == ([mine], [theirs])
            await asyncio.gather(load_all(first, "one of run1"), load_all(second, "nine of run2"))

        assert (engines["mine"].engine.version, engines["mine"].engine.weights) == ("run1/1.1", "one of run1")
        assert (engines["theirs"].engine.version, engines["theirs"].engine.weights) == ("run2/1.9", "nine of run2")


async def test_servers_drain_and_leave(run: Run, pool: InferencePool, engines: Engines) -> None:
    urls = [await engines.start(name) for name in ("a", "b")]
    await run.servers.attach(urls)
    assert await run.servers.drain(urls[0]) == (urls[0],)
    assert [(await pool.assign("run1", "", f"run1.j.{n}", 1)).server for n in range(2)] == [urls[1]] * 2  # type: ignore[union-attr]
    async with run.weight_update(1) as servers:
        assert len(servers) == 2, "one that drains has jobs still"
    assert await run.servers.drop(urls[1]) == (urls[1],)
    assert await run.servers.clear() == (urls[0],)
    assert await run.servers.list() == ()


def test_without_an_event_loop(settings: QueueSettings, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The blocking client enters and leaves the block on its own loop; the block itself runs here."""

    async def start() -> Engines:
        engines = Engines(tmp_path_factory.mktemp("e"))
        await engines.start("a")
        return engines

    loop = asyncio.new_event_loop()
    engines = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with connect_blocking(settings, run="run1") as run:
            run.servers.attach(engines.url("a"))
            with run.weight_update(1) as servers:
                assert [server.url for server in servers] == [engines.url("a")]
            assert run.policy_version == "1.1"
            with pytest.raises(KeyError), run.weight_update(2):
                raise KeyError
            assert run.servers.list()[0].standing == "unsynced"
    finally:
        asyncio.run_coroutine_threadsafe(engines.leave(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
