"""A trainer resumes ahead of a Redis that went back in time, and dies as it puts the ledger right."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import orjson
import pytest

from pipeline.failpoints import FAILPOINT
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump
from tests.integration.trainer_client.rows import rows
from trainer_client import StepRequest, connect

RUN = "behind"
RESTORE_POINTS = ("restore_steps",)
SPEC = StepRequest(task="math", groups=2, n=2, ahead=1)
ROWS = 12
PROGRAM = """
import asyncio, orjson, sys
from pipeline.settings import QueueSettings
from trainer_client import connect

async def main():
    async with connect(QueueSettings.load(), run=sys.argv[1], resume=orjson.loads(sys.argv[2])):
        pass

asyncio.run(main())
"""
Kept = dict[bytes, tuple[int, bytes]]
"""Time to live, ms, and value, by key."""


async def names_of(client: AsyncClient, keys: Keys) -> list[bytes]:
    return [name async for name in client.scan_iter(match=f"{keys.tag}:*", count=1000)]


async def all_of(client: AsyncClient, keys: Keys) -> Kept:
    """What the shard holds at one moment."""
    names = await names_of(client, keys)
    async with client.pipeline(transaction=True) as pipe:
        for name in names:
            pipe.pttl(name)
            pipe.dump(name)
        found = await pipe.execute()
    return {name: (max(0, ms), value) for name, ms, value in zip(names, found[::2], found[1::2], strict=True) if value is not None}


async def go_back(client: AsyncClient, keys: Keys, before: Kept) -> None:
    """The shard holds what it held then, as a replica that is promoted. Everybody is cut off, so that workers ask anew what is theirs."""
    async with client.pipeline(transaction=True) as pipe:
        pipe.delete(*await names_of(client, keys))
        for name, (ms, value) in before.items():
            pipe.restore(name, ms, value)
        await pipe.execute()
    await ask(client, "CLIENT", "KILL", "TYPE", "normal")


@pytest.mark.one_server
@pytest.mark.parametrize("point", RESTORE_POINTS)
async def test_a_trainer_killed_as_it_restores_the_ledger_is_followed_by_one_that_does_it_again(
    point: str, settings: QueueSettings, client: AsyncClient, keys: Keys, supervisor: Supervisor, pump: Pump
) -> None:
    async def flies() -> bool:
        return int(await ask(client, "ZCARD", keys.flying(RUN))) >= 4

    async with connect(settings, run=RUN) as run:
        pump.hold_all = True
        feed = run.feed(rows(ROWS), shuffle_seed=5, reserve=8)
        steps = run.steps(SPEC, start=1, timeout_s=40)

        async def next_step() -> list[str]:
            step = await anext(steps)
            await step.ack()
            return [group.prompt_id for group in step.groups]

        waiting = asyncio.create_task(next_step())
        await wait_until(flies, "groups fly")
        await wait_until(feed.ended.is_set, "all was pushed")
        before = await all_of(client, keys)
        pump.hold_all = False
        trained = await waiting
        checkpoint = run.state_dict()
        pump.hold_all = True
    await go_back(client, keys, before)

    environment = {"ROLLSTREAM_REDIS_URL": settings.redis_url, "ROLLSTREAM_NAMESPACE": settings.namespace, FAILPOINT: point}
    command = [sys.executable, "-c", PROGRAM, RUN, orjson.dumps(checkpoint).decode()]
    killed = await asyncio.to_thread(subprocess.run, command, env={**os.environ, **environment}, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL

    pump.hold_all = False
    async with connect(settings, run=RUN, resume=checkpoint) as run:
        run.feed(rows(ROWS), shuffle_seed=5, reserve=8)
        async for step in run.steps(SPEC, timeout_s=40):
            trained += [group.prompt_id for group in step.groups]
            await step.ack()
    assert sorted(trained) == sorted(f"e0-{row}" for row in range(ROWS))
