"""What every engine's control owes a trainer and the pool, whatever the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.engines import EngineControl, Exchange, PauseMode, Unsupported, connect_control
from pipeline.testing.wait import wait_until
from tests.contract.llm.conftest import PROMPT, scripted
from workers.llm import HttpBackend, connect_backend
from workers.llm.scripted import Fault, ScriptedServer, ServerOptions
from workers.llm.scripted.options import WireVersion

SCRIPT = [*range(5, 205)]
ENGINES = {
    "vllm": ServerOptions(wire="0.32"),
    "vllm-0.33": ServerOptions(wire="0.33"),
    "sglang": ServerOptions(wire="sglang-0.5"),
    "sglang-0.5.10": ServerOptions(wire="sglang-0.5.10"),
}


@dataclass
class Scene:
    """An engine, the control that a trainer has of it, and the client of a worker."""

    server: ScriptedServer
    control: EngineControl
    client: HttpBackend


@pytest.fixture(params=list(ENGINES))
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """One for each kind of engine."""
    async with ScriptedServer(ENGINES[request.param]) as server, Exchange(server.url) as http, connect_backend(server.url) as client:
        await client.probe()
        yield Scene(server, connect_control(http), client)


async def test_a_look_says_which_engine_it_is_and_how_busy(scene: Scene) -> None:
    call = asyncio.create_task(scene.client.generate(scripted(SCRIPT, "slow", delay_ms=20), timeout_s=30))
    await wait_until(lambda: scene.server.engine.n_running == 1, "the call runs")

    health = await scene.control.health()

    assert (health.alive, health.kind, health.detail) == (True, "sglang" if scene.server.options.is_sglang else "vllm", "")
    assert (health.running, health.waiting, health.paused, health.version) == (1, 0, False, "default")
    assert health.tells_pause == (scene.server.options.wire != "sglang-0.5.10")
    assert 0 < health.kv_used < 0.01
    assert bool(health.started) == (scene.server.options.wire != "sglang-0.5.10")
    await scene.client.abort("slow")
    await call


async def test_a_label_ends_no_call(scene: Scene) -> None:
    """SGLang aborts all calls when it is told another label, unless it is told not to: a trainer's keep would have lost them."""
    call = asyncio.create_task(scene.client.generate(scripted(SCRIPT, delay_ms=2), timeout_s=30))
    await wait_until(lambda: scene.server.engine.n_running == 1, "the call runs")

    assert await scene.control.set_version("run/1.7")

    assert (await call).finish == "stop"
    assert await scene.control.version() == "run/1.7"


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
async def test_a_pause_leaves_no_prefix_behind(scene: Scene, mode: PauseMode) -> None:
    long = PROMPT * 4
    await scene.client.generate(scripted([5, 6], "before", prompt_ids=long), timeout_s=10)

    await scene.control.pause(mode)
    await scene.control.resume()

    assert (await scene.client.generate(scripted([5, 6], "after", prompt_ids=long), timeout_s=10)).cached_tokens == 0


async def test_a_kept_call_goes_on_with_the_new_weights_alone(scene: Scene) -> None:
    """Tokens after the pause must be those of the new weights over their own keys and values, not over the old ones'."""
    control, engine = scene.control, scene.server.engine
    await control.set_version("old")
    before = engine.generation_tokens
    call = asyncio.create_task(scene.client.generate(scripted(SCRIPT, "kept", delay_ms=2), timeout_s=30))
    await wait_until(lambda: engine.generation_tokens > before, "tokens come out")
    await control.pause("keep")
    out = engine.generation_tokens - before
    await control.set_version("new")
    await control.resume()

    kept = await call
    fresh = await scene.client.generate(
        scripted(SCRIPT[out:], "fresh", prompt_ids=[*PROMPT, *SCRIPT[:out]], cache_salt="apart"), timeout_s=10
    )
    assert kept.output_ids[:-1] == SCRIPT
    assert kept.logprobs[out:] == fresh.logprobs


async def test_a_pause_that_waits_takes_as_long_as_the_calls_and_ends_none(scene: Scene) -> None:
    calls = [asyncio.create_task(scene.client.generate(scripted(SCRIPT, f"job.{n}", delay_ms=3 + n), timeout_s=30)) for n in range(3)]
    await wait_until(lambda: scene.server.engine.n_running == 3, "the calls run")

    await scene.control.pause("wait")

    assert scene.server.engine.n_running == 0
    assert [result.finish for result in await asyncio.gather(*calls)] == ["stop"] * 3
    await scene.control.resume()


async def test_a_pause_during_a_pause_and_a_resume_of_none_are_taken(scene: Scene) -> None:
    await scene.control.resume()
    await scene.control.pause("abort")
    await scene.control.pause("keep")
    await scene.control.resume()

    assert (await scene.client.generate(scripted([5, 6]), timeout_s=10)).output_ids[:2] == [5, 6]


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5"])
async def test_a_command_survives_a_connection_that_the_server_closed_as_idle(wire: WireVersion) -> None:
    """A trainer that loads weights for a minute comes back over a connection that the server closed after five seconds."""
    options = ServerOptions(wire=wire, keepalive_s=0.05)
    async with ScriptedServer(options) as server, Exchange(server.url) as http:
        control = connect_control(http)

        async def server_forgets_us() -> None:
            await wait_until(lambda: not server.connections, "the server has closed the idle connection")

        await control.pause("keep")
        await server_forgets_us()
        await control.set_version("1.2")
        await server_forgets_us()
        await control.resume()
        await server_forgets_us()

        assert (await control.health()).version == "1.2"


async def test_an_engine_that_cannot_says_how_it_could() -> None:
    async with ScriptedServer(ServerOptions(dev_mode=False)) as server, Exchange(server.url) as http:
        control = connect_control(http)
        with pytest.raises(Unsupported, match="VLLM_SERVER_DEV_MODE"):
            await control.pause("keep")

        assert not await control.set_version("1.2")
        assert await control.version() == ""
        health = await control.health()
    assert (health.alive, health.paused, health.tells_pause, health.version) == (True, False, False, "")


async def test_a_server_whose_metrics_are_hidden_is_well() -> None:
    """A proxy that let only what it knew through took all servers behind it from their run."""
    async with ScriptedServer() as server, Exchange(server.url) as http:
        server.faults.arm(Fault(kind="status", path="/metrics", status=404))
        health = await connect_control(http).health()
    assert (health.alive, health.running, health.kv_used, health.started) == (True, 0, -1.0, "")


async def test_a_server_that_was_started_again_has_another_start_and_its_first_label(scene: Scene) -> None:
    """A restart between two looks breaks no connection under our hands, and the server holds other weights now."""
    await scene.control.set_version("run/1.7")
    before = [await scene.control.health() for _ in range(3)]

    scene.server.restart()
    await wait_until(lambda: not scene.server.connections, "the old connections are gone")
    after = [await scene.control.health() for _ in range(3)]

    assert [(look.version, look.alive) for look in (*before, *after)] == [("run/1.7", True)] * 3 + [("default", True)] * 3
    assert len({look.started for look in before}) == len({look.started for look in after}) == 1
    assert (before[0].started != after[0].started) == (scene.server.options.wire != "sglang-0.5.10")


async def test_nobody_there_is_an_answer(scene: Scene) -> None:
    await scene.control.health()

    await scene.server.die()

    health = await scene.control.health()
    assert (health.alive, "unreachable" in health.detail) == (False, True)


async def test_another_kind_of_server_at_the_address_is_seen(tmp_path: Path) -> None:
    """A server is stopped and one of another kind started at its address: what was found of the first is not true of the second."""
    where = tmp_path / "llm.sock"
    wires: tuple[WireVersion, ...] = ("0.32", "sglang-0.5", "0.31")
    seen = []
    async with Exchange(f"unix:{where}") as http, connect_backend(f"unix:{where}") as client:
        control = connect_control(http)
        for wire in wires:
            async with ScriptedServer(ServerOptions(wire=wire), socket_path=where):
                result = await client.generate(scripted([5, 6], f"job.{wire}"), timeout_s=10)
                await wait_until(lambda: _is_alive(control), "a look finds the server")
                seen.append(((await control.health()).kind, (await client.probe()).kind, result.output_ids[:2]))

    assert seen == [("vllm", "vllm", [5, 6]), ("sglang", "sglang", [5, 6]), ("vllm", "vllm", [5, 6])]


async def _is_alive(control: EngineControl) -> bool:
    return (await control.health()).alive
