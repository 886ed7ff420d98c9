"""The routing bench on few jobs: all of them end, and what it says of the pool holds."""

from __future__ import annotations

import pytest

from ops.bench.routing_bench import OURS, RIVALS, SCENES, figures, simulate_all, table
from ops.bench.routing_cost import script_costs
from ops.bench.routing_engine import Engine, PrefixCache
from pipeline.inference_pool.pool import LAX
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings

pytestmark = pytest.mark.one_server


def work_off(engine: Engine) -> None:
    """Until its last call has ended."""
    while engine.calls:
        engine.advance(engine.next_end_s())


def test_a_server_serves_what_begins_alike_from_its_cache_and_slows_with_load() -> None:
    engine = Engine("s", PrefixCache(16_000))
    prompt = (("system", 0, 10), ("group", 0, 40))
    engine.begin(0, prompt, 100)
    work_off(engine)
    alone_s = engine.now_s

    engine.begin(1, (*prompt, ("job", 0, 10)), 100)

    assert (engine.prompt_tokens, engine.cached_tokens) == (16 * 110, 16 * 50)
    for call in range(2, 32):
        engine.begin(call, prompt, 100)
    work_off(engine)
    assert engine.now_s - alone_s > 1.2 * alone_s
    assert engine.sampled_tokens == pytest.approx(3200, rel=0.01)


def test_a_cache_forgets_what_was_unused_for_longest() -> None:
    cache = PrefixCache(16 * 10)
    assert [cache.take((("a", 0, 6),)), cache.take((("b", 0, 4),)), cache.take((("a", 0, 6),))] == [0, 0, 6]
    assert cache.take((("c", 0, 2),)) == 0
    assert [cache.take((("a", 0, 6),)), cache.take((("b", 0, 4),))] == [6, 0], "b lost its first blocks, and a prefix begins with them"


@pytest.mark.slow
async def test_the_pool_is_no_worse_than_what_it_is_compared_with(settings: QueueSettings, client: AsyncClient) -> None:
    outcomes = await simulate_all(settings, lambda line: None, jobs_count=200, lax=LAX, seeds=(7,))

    assert set(outcomes) == {(scene, name) for scene in SCENES for name in (OURS, *RIVALS)}
    assert len(table(outcomes)) == 1 + len(outcomes)
    found = figures(outcomes)
    assert max(found[f"{scene}_makespan_ratio"] for scene in SCENES) <= 1.10
    assert min(found[f"{scene}_hits_ratio"] for scene in SCENES) >= 0.90
    assert found["dies_lost_turns_ratio"] == 1.0
    assert found["joiner_peak_ratio"] <= 1.4
    for key in [key async for key in client.scan_iter(match="{*:pool}:*")]:
        await client.unlink(key)


async def test_the_cost_of_scripts_is_measured(settings: QueueSettings, client: AsyncClient) -> None:
    costs = await script_costs(client, settings.namespace)

    assert {name.split("_")[0] for name in costs} == {"assign", "begin", "end"}
    assert all(0 < us < 100_000 for us in costs.values())
    assert costs["begin_gathered_us"] < costs["begin_alone_us"]
