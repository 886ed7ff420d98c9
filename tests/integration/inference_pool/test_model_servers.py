"""A job's way to its model: real scripted servers, killed, absent, drained; and a Redis that is away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ops.child_processes import Child, ChildProcesses
from pipeline.errors import JobCancelled
from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import Sampling
from pipeline.redis_client import AsyncClient, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from workers.llm.backend import GenRequest
from workers.stages.model_servers import ModelServers
from workers.stages.pooled_backend import CALL_TRIES, PooledBackend

pytestmark = pytest.mark.one_server
LEASE_S = 1.0


class Models:
    """Scripted servers as processes."""

    def __init__(self, children: ChildProcesses, folder: Path) -> None:
        self._children = children
        self._folder = folder

    def url(self, name: str) -> str:
        return f"unix:{self._folder / name}"

    def start(self, name: str, *, per_token_ms: float = 0.0) -> Child:
        return self._children.start(
            name,
            "workers.llm.scripted",
            "--socket",
            str(self._folder / name),
            "--per-token-ms",
            str(per_token_ms),
            "--latency-sigma",
            "0",
        )

    async def serves(self, *names: str) -> None:
        await wait_until(lambda: all((self._folder / name).exists() for name in names), "the servers serve", timeout_s=30)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    with TemporaryDirectory(prefix="rsm-") as folder, ChildProcesses(tmp_path, {}) as children:
        yield Models(children, Path(folder))


@pytest.fixture
async def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    return InferencePool(client, settings.namespace, lease_s=LEASE_S)


@pytest.fixture
async def servers(pool: InferencePool) -> AsyncIterator[ModelServers]:
    async with ModelServers(pool, lease_s=LEASE_S) as servers:
        yield servers


def no_gate() -> None:
    """Nothing is cancelled."""


def a_way(
    servers: ModelServers,
    job: str = "run1.e0-i0.0",
    *,
    gate: Callable[[], None] = no_gate,
    progress: Callable[[float], None] = lambda within_s: None,
) -> PooledBackend:
    return servers.for_job("run1", "", job, 1, gate=gate, progress=progress, waiting=nullcontext)


def a_call(request_id: str = "r0", tokens: int = 16) -> GenRequest:
    return GenRequest(request_id=request_id, prompt_ids=[5, 6, 7, 8], sampling=Sampling(), max_tokens=tokens, seed=1)


@pytest.mark.slow
async def test_a_job_goes_on_at_another_server_when_its_own_dies_in_the_middle_of_a_call(
    models: Models, pool: InferencePool, servers: ModelServers
) -> None:
    """The dead server has lost its load and was the least loaded one: every job came back to it, four times in a row, and failed."""
    children = {name: models.start(name, per_token_ms=30) for name in ("a", "b")}
    await models.serves("a", "b")
    await pool.attach("run1", [Server(models.url(name), "", "1.0") for name in children])
    others = [a_way(servers, f"run1.other.{number}") for number in range(4)]  # load at both, so that the dead one would be chosen
    for number, other in enumerate(others):
        await other.generate(a_call(f"o{number}", 1), timeout_s=20)
    async with a_way(servers) as way:
        first = await way.generate(a_call(tokens=1), timeout_s=20)
        its = "a" if first.server == models.url("a") else "b"
        call = asyncio.create_task(way.generate(a_call("r1", 64), timeout_s=20))
        await asyncio.wait([call], timeout=0.3)
        assert not call.done()

        children[its].asked_to_stop = True
        children[its].process.kill()

        result = await call
        assert result.server == models.url("b" if its == "a" else "a")
        assert len(result.output_ids) <= 64
        assert way.rerouted >= 1
        for number, other in enumerate(others):
            assert (await other.generate(a_call(f"p{number}", 1), timeout_s=20)).server == result.server


async def test_a_job_waits_for_a_server_and_promises_that_it_will(models: Models, pool: InferencePool, servers: ModelServers) -> None:
    promised: list[float] = []
    async with a_way(servers, progress=promised.append) as way:
        call = asyncio.create_task(way.generate(a_call(), timeout_s=20))
        await wait_until(lambda: len(promised) >= 3, "it waits, and says so again and again")
        assert not call.done()
        models.start("late")
        await models.serves("late")

        await pool.attach("run1", [Server(models.url("late"), "", "1.0")])

        assert (await call).server == models.url("late")
        assert min(promised) >= 30, "each promise is longer than any pause between two"


@pytest.mark.slow
async def test_a_server_that_is_listed_and_cannot_be_reached_is_waited_for(models: Models, pool: InferencePool) -> None:
    """A model takes minutes to load. Its jobs used up their tries within seconds, and were dead letters before it was up."""
    await pool.attach("run1", [Server(models.url("slow"), "", "1.0")])
    async with ModelServers(pool, lease_s=LEASE_S, first_suspicion_s=0.05) as servers, a_way(servers) as way:
        call = asyncio.create_task(way.generate(a_call(), timeout_s=20))
        await wait_until(lambda: way.calls_again > CALL_TRIES or call.done(), "it tried more often than a call may fail", timeout_s=30)
        assert not call.done()

        models.start("slow")

        assert (await call).server == models.url("slow")


async def test_a_cancelled_job_waits_no_longer(servers: ModelServers) -> None:
    """Each wait passes the gate."""
    cancelled = asyncio.Event()

    def gate() -> None:
        if cancelled.is_set():
            raise JobCancelled("run1.e0-i0.0", "user")

    async with a_way(servers, gate=gate) as way:
        call = asyncio.create_task(way.generate(a_call(), timeout_s=20))
        await asyncio.wait([call], timeout=0.2)
        assert not call.done()

        cancelled.set()

        with pytest.raises(JobCancelled):
            await call


@pytest.mark.slow
async def test_a_job_moves_at_its_next_call_when_its_server_is_taken_away(
    models: Models, pool: InferencePool, servers: ModelServers
) -> None:
    for name in ("a", "b"):
        models.start(name)
    await models.serves("a", "b")
    await pool.attach("run1", [Server(models.url("a"), "", "1.0")])
    async with a_way(servers) as way:
        numbers = itertools.count(1)
        assert (await way.generate(a_call(), timeout_s=20)).server == models.url("a")
        await pool.detach("run1", [models.url("a")])
        await pool.attach("run1", [Server(models.url("b"), "", "1.0")])

        async def moved() -> bool:
            return (await way.generate(a_call(f"r{next(numbers)}"), timeout_s=20)).server == models.url("b")

        await wait_until(moved, "a renewal said so, and its next call goes elsewhere")


@pytest.mark.slow
async def test_the_load_of_a_job_is_kept_while_it_runs_and_given_back_at_its_end(
    models: Models, pool: InferencePool, servers: ModelServers
) -> None:
    models.start("a")
    await models.serves("a")
    await pool.attach("run1", [Server(models.url("a"), "", "1.0")])
    async with a_way(servers) as way:
        await way.generate(a_call(), timeout_s=20)
        until = asyncio.get_running_loop().time() + 1.5 * LEASE_S
        while asyncio.get_running_loop().time() < until:  # longer than a lease: it is renewed
            probe = await pool.assign("run1", "", "probe", 1)
            assert probe is not None
            await pool.release(probe)
            assert await pool.load("run1") == {models.url("a"): 1}
            await asyncio.sleep(0.1)

    assert await pool.load("run1") == {models.url("a"): 0}


@pytest.mark.slow
async def test_an_outage_of_redis_is_waited_for_like_a_server(
    models: Models, settings: QueueSettings, redis_server: PrivateServer, pool: InferencePool
) -> None:
    """Half a second without Redis sent a job back to INIT, with all that its agent had done."""
    models.start("a")
    await models.serves("a")
    await pool.attach("run1", [Server(models.url("a"), "", "1.0")])
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        async with ModelServers(InferencePool(client, settings.namespace, lease_s=LEASE_S), lease_s=LEASE_S) as servers:
            proxy.begin_outage()
            async with a_way(servers) as way:
                call = asyncio.create_task(way.generate(a_call(), timeout_s=20))
                await asyncio.wait([call], timeout=1.0)
                assert not call.done()

                proxy.heal()

                assert (await call).server == models.url("a")
        await client.aclose()
