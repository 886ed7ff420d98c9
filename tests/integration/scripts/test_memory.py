"""Promise 9: memory is bounded. A full Redis refuses new jobs and drains the old ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from pipeline.errors import QueueFull
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import ask, command_client
from pipeline.scripts import JournalTurn, Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, QueueAudit, a_group, a_template, a_unit, carry
from tests.integration.scripts.conftest import Run

MIB = 1024 * 1024
JOBS = 1000


async def connected(server: PrivateServer) -> Run:
    client = command_client(QueueSettings(redis_url=server.url, namespace="full"))
    scripts = Scripts(client, Keys.of_shard("full", 0))
    incarnation = await scripts.connect_run("run1", nonce="n", ttl_s=3600)
    return Run("run1", incarnation, scripts, QueueAudit(client, scripts.keys))


async def fill_to_the_brim(run: Run) -> None:
    """Other data, until the server itself refuses; at last in small pieces, which a big one leaves room for."""
    number = 0
    for size in (100_000, 200):
        while await is_taken(run, number, size):
            number += 1


async def is_taken(run: Run, number: int, size: int) -> bool:
    try:
        await ask(run.client, "SET", run.audit.keys.key("ballast", number), b"x" * size, "EX", 3600)
    except redis.exceptions.OutOfMemoryError:
        return False
    return True


async def test_what_is_reserved_for_open_jobs_counts_as_used(make_server: Callable[..., PrivateServer]) -> None:
    """Jobs that are open have yet to write their bodies. Accepting by what is used now would fill Redis with promises."""
    run = await connected(make_server(maxmemory_bytes=64 * MIB))
    template = a_template(expected_bytes=4 * MIB)
    await run.accept(a_group(prompt="one", members=8), template=template)
    assert await run.audit.reserved_bytes() == 32 * MIB

    with pytest.raises(QueueFull, match=r"memory: \d+ MiB used and 32 MiB reserved of 64 MiB") as refused:
        await run.accept(a_group(prompt="two", members=8), template=template)

    assert refused.value.retry_after_s > 0
    assert await run.audit.job("run1.two.0.0") == {}
    await run.scripts.cancel("group", [a_group(prompt="one").id], "user")
    assert await run.audit.reserved_bytes() == 0
    assert await run.accept(a_group(prompt="two", members=8), template=template) == [True]
    await run.client.aclose()


async def test_a_full_redis_refuses_new_jobs_and_drains_the_old_ones(make_server: Callable[..., PrivateServer]) -> None:
    """Above maxmemory everything that takes work out goes on: beginning, journal, hand-off with its body, retries, settling, cancelling,
    acking. So does a trainer that connects again, who is the one that frees memory. What brings work in is refused, whole."""
    run = await connected(make_server(maxmemory_bytes=24 * MIB))
    template = a_template(expected_bytes=1, max_failed=5)
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(6)], template=template, window=2)
    await fill_to_the_brim(run)

    with pytest.raises(QueueFull, match="memory"):
        await run.accept(a_unit(prompt="new"), template=template)

    init = run.worker(Stage.INIT, window=2)
    retried, cancelled, *_ = held = await init.take()
    assert await init.renew(*held) == (True, ["1"] * len(held))
    assert await init.give_up(retried, backoff_ms=1) == ["retry"]
    await run.scripts.cancel("job", [cancelled.job], "user")
    assert await init.settle(cancelled) == ["cx:user"]
    while (await run.scripts.promote())[0] == 0:
        pass
    held = await init.take()
    assert await init.recover("idle", *held) == ["lost"] * len(held)
    for _ in range(10):
        for job in await carry(run.scripts, to=Stage.RUN):
            turn = JournalTurn(job.job, job.attempt, 0, b"turn" * 1000)
            assert await run.scripts.journal([turn], ttl_ms=60_000) == ["1"]
            assert await run.worker(Stage.RUN).hand_off(job, body=b"body" * 10_000) == ["ok"]
        grader = run.worker(Stage.EVAL)
        if held := await grader.take():
            await grader.settle(*held, body=b"grade" * 1000)
    assert await run.audit.all_ended("run1", run.units) == []

    incarnation = await run.scripts.connect_run("run1", nonce="again", ttl_s=3600)
    records = await run.audit.results("run1")
    assert await run.scripts.ack("run1", incarnation, [(row["entry"], "job", row["job"]) for row in records]) == 6
    assert await run.audit.results("run1") == []
    await run.client.aclose()


async def test_memory_returns_after_everything_was_acked(run: Run) -> None:
    """What stays of a job is a tombstone of its unit, for two days. Counted by key: the server's own buffers come and go."""
    await run.accept(*[a_unit(prompt=f"e0-i{number}") for number in range(JOBS)], window=JOBS)
    await run.worker(Stage.EVAL).settle(*await run.reach(Stage.EVAL), body=b"grade" * 50)
    records = await run.audit.results("run1")
    await run.scripts.ack("run1", run.incarnation, [(row["entry"], "job", row["job"]) for row in records])
    run.units = []

    used = {
        run.audit.keys.short(key.decode()): await ask(run.client, "MEMORY USAGE", key, "SAMPLES", 0)
        for key in await ask(run.client, "KEYS", f"{run.audit.keys.tag}:*")
    }
    assert sum(used.values()) < JOBS * 100, used
    assert not {key.split(":")[0] for key in used} & {"j", "b", "g", "q", "open"}
