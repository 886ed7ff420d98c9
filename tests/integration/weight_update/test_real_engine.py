"""Weight updates on a real vLLM with two sets of weights: what it samples then is of the new ones, and the record says which is which."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np
import pytest

from pipeline.engines import Exchange
from pipeline.inference_pool import InferencePool, PoolLooks
from pipeline.messages import Sampling
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.weight_update.loading import load
from tests.vllm_server import REAL, VllmServer
from trainer_client import Run
from trainer_client.weight_update import UpdateMode
from workers.agent.limits import ActiveTime
from workers.llm import connect_backend
from workers.llm.backend import GenRequest, GenResult
from workers.llm.scoring_wire import prompt_body, read_prompt
from workers.stages.model_servers import ModelServers
from workers.stages.pool_keeper import PoolKeeper
from workers.stages.pooled_backend import PooledBackend

pytestmark = [pytest.mark.one_server, *REAL]
TOKENS, DELAY_MS = 48, 25
CLOSE, FAR = 0.02, 0.2
"""Mean distance, in nats, of logprobs that the same weights give to a token twice (bfloat16, other batches), and that others give."""


@dataclass
class Scene:
    """A job's way to a server that two sets of weights come to."""

    run: Run
    server: VllmServer
    way: PooledBackend
    active: ActiveTime

    def folder(self, version: str) -> str:
        """What was loaded for it: by turns."""
        return str(self.server.other_weights if version.endswith(("1", "3")) else self.server.folder)

    async def update(self, number: int, mode: UpdateMode) -> None:
        async with self.run.weight_update(number, mode=mode) as servers:
            for server in servers:
                await load(server.url, self.folder(servers.version))
        assert servers.failed == {}

    def request(self, name: str, ids: list[int], tokens: int, delay_ms: int = DELAY_MS) -> GenRequest:
        return GenRequest(
            request_id=name, prompt_ids=ids, sampling=Sampling(), max_tokens=tokens, seed=len(ids), extra_args={"delay_ms": delay_ms}
        )

    async def turn(self, name: str, ids: list[int]) -> list[tuple[list[int], GenResult]]:
        """One answer, in as many calls as aborts make of it, each with the ids before it."""
        parts: list[tuple[list[int], GenResult]] = []
        left = TOKENS
        while left and (not parts or parts[-1][1].finish == "abort"):
            result = await self.way.generate(self.request(f"{name}.{len(parts)}", ids, left), timeout_s=60)
            parts.append((ids, result))
            ids, left = [*ids, *result.output_ids], left - len(result.output_ids)
        return parts

    async def is_sampling(self, tokens: int) -> bool:
        async with connect_backend(self.server.url) as backend:
            return (await backend.control.health()).running == 1 and await sampled(self.server.url) >= tokens


async def sampled(url: str) -> float:
    """Tokens that a server has sampled since its start."""
    async with Exchange(url) as http:
        page = str(await http.get("/metrics", parse=False))
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("vllm:generation_tokens_total"))


@pytest.fixture
async def scene(run: Run, settings: QueueSettings, client: AsyncClient, vllm_server: VllmServer) -> AsyncIterator[Scene]:
    pool, active, stop = InferencePool(client, settings.namespace, lease_s=settings.lease_s), ActiveTime(3600), asyncio.Event()
    await run.servers.attach(vllm_server.url, control="trainer")
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(ModelServers(pool, lease_s=settings.lease_s))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(PoolKeeper(PoolLooks(client, settings.namespace), servers.backend).run(stop), name="keeper")
        stack.callback(stop.set)
        way = servers.for_job("run1", "", "run1.j.0", 1, gate=lambda: None, progress=lambda within_s: None, waiting=active.waiting)
        scene = Scene(run, vllm_server, await stack.enter_async_context(way), active)
        await scene.update(0, "abort")
        await way.probe()
        yield scene
        # left as it was found
        await load(vllm_server.url, str(vllm_server.folder))
        async with connect_backend(vllm_server.url) as backend:
            await backend.control.set_version("default")
            await backend.control.resume()
            await backend.control.reset_cache()


async def distance(scene: Scene, parts: list[tuple[list[int], GenResult]], version: str) -> tuple[int, float]:
    """Tokens that bear a version, and how far their logprobs are in the mean from those of the weights that the server holds now."""
    found: list[float] = []
    async with connect_backend(scene.server.url) as backend, Exchange(scene.server.url) as http:
        caps = await backend.probe()
        for number, (before, result) in enumerate(parts):
            ids = [*before, *result.output_ids]
            name = f"score-{version}-{number}-{random.random()}"
            payload = await http.post("/inference/v1/generate", prompt_body(caps, ids, name, name))
            given = read_prompt(caps, payload, ids)[len(before) - 1 :]
            for span in result.spans:
                if span.version == version:
                    found += np.abs(np.subtract(result.logprobs[span.start : span.end], given[span.start : span.end])).tolist()
    return len(found), float(np.mean(found)) if found else 0.0


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
async def test_tokens_after_an_update_are_the_new_weights_and_say_so(scene: Scene, mode: UpdateMode) -> None:
    ids = [random.Random(mode).randrange(3, 400) for _ in range(200)]
    began = await sampled(scene.server.url)
    turn = asyncio.create_task(scene.turn("crossing", ids))
    await wait_until(lambda: scene.is_sampling(int(began) + TOKENS // 4), "it is in the middle of an answer", timeout_s=30)

    await scene.update(1, mode)
    parts = await turn
    after = await scene.turn("after", ids)

    spans = [(span.version, span.end - span.start) for _, result in parts for span in result.spans]
    assert sum(tokens for _, tokens in spans) == sum(len(result.output_ids) for _, result in parts)
    if mode == "wait":
        assert [version for version, _ in spans] == ["1.0"]
    else:
        assert [version for version, _ in spans] == ["1.0", "1.1"], spans
        assert len(parts) == (2 if mode == "abort" else 1)
    assert {span.version for _, result in after for span in result.spans} == {"1.1"}

    new_tokens, near = await distance(scene, [*parts, *after], "1.1")  # the server holds these weights
    old_tokens, far = await distance(scene, parts, "1.0")
    assert near < CLOSE, f"{new_tokens} tokens are said to be of the new weights, {near:.4f} nats from them"
    assert far > FAR, f"{old_tokens} tokens are said to be of the old weights, and are {far:.4f} nats from the new ones"
    await scene.update(2, "abort")  # the old weights again
    old_tokens, near = await distance(scene, parts, "1.0")
    assert near < CLOSE, f"{old_tokens} tokens are said to be of the old weights, {near:.4f} nats from them"
    print(
        f"{mode}: {spans}, then {len(after[0][1].output_ids)}; {new_tokens} new and {old_tokens} old tokens; far {far:.3f}, near {near:.5f}"
    )


@pytest.mark.parametrize("mode", ["keep", "wait"])
async def test_a_block_that_raises_leaves_the_engine_without_a_version_until_the_next_update(scene: Scene, mode: UpdateMode) -> None:
    """The engine stays paused under no version, and a second pause is no harm: the frozen call goes on, or comes back with what it has."""
    ids = [random.Random(5).randrange(3, 400) for _ in range(50)]
    began = await sampled(scene.server.url)
    turn = asyncio.create_task(scene.turn("frozen", ids))
    await wait_until(lambda: scene.is_sampling(int(began) + TOKENS // 4), "it is in the middle of an answer", timeout_s=30)

    async def breaks() -> None:
        async with scene.run.weight_update(1):
            await load(scene.server.url, scene.folder("1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()
    assert (await scene.run.servers.list())[0].standing == "unsynced"
    assert not turn.done()

    await scene.update(1, mode)
    parts = await turn

    spans = [span.version for _, result in parts for span in result.spans]
    assert spans == ["1.0", "1.1"]
    _, near = await distance(scene, parts, "1.1")
    assert near < CLOSE
