"""What the pool's scripts take of Redis's time: alone, and gathered as a busy worker sends them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pipeline.inference_pool import Assignment, Call, EndedCall, InferencePool, Server, Wanted
from pipeline.redis_client import AsyncClient

TIMES, GATHERED, SERVERS = 200, 32, 4


async def script_costs(client: AsyncClient, namespace: str) -> dict[str, float]:
    """Microseconds a job or call, by INFO commandstats."""
    pool = InferencePool(client, namespace, lease_s=600.0)
    await pool.attach("bench", [Server(f"http://s{number}") for number in range(SERVERS)])
    wanted = [Wanted(job=f"bench.{number}", attempt=1, group=f"g{number // 8}") for number in range(GATHERED)]
    found = [one for one in await pool.assign_all("bench", wanted) if isinstance(one, Assignment)]
    calls = [Call(one, "c") for one in found]
    costs: dict[str, float] = {}
    for size, name in ((1, "alone"), (GATHERED, "gathered")):
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "assign": lambda size=size: pool.assign_all("bench", wanted[:size]),  # type: ignore[misc]  # bound now
            "begin": lambda size=size: pool.begin_calls("bench", calls[:size]),  # type: ignore[misc]
            "end": lambda size=size: pool.end_calls("bench", [EndedCall(call) for call in calls[:size]]),  # type: ignore[misc]
        }
        took = dict.fromkeys(steps, 0.0)
        for _ in range(TIMES):
            for step, ask in steps.items():
                if step == "assign":
                    await pool.release(*found[:size])
                before_us = await _script_us(client)
                await ask()
                took[step] += await _script_us(client) - before_us
        costs |= {f"{step}_{name}_us": us / TIMES / size for step, us in took.items()}
    return costs


async def _script_us(client: AsyncClient) -> float:
    return float((await client.info("commandstats")).get("cmdstat_evalsha", {"usec": 0})["usec"])
