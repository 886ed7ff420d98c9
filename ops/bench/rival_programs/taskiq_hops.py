"""Three hops on taskiq-redis streams at their best setting: reads of 100, no result back end, each task sends the next.

`taskiq_hops.py work PROCESSES` is taskiq's own workers, until they are stopped; `taskiq_hops.py feed JOBS` sends that many first hops and
ends.
"""

from __future__ import annotations

import asyncio
import os
import sys

from leash import end_with_parent  # type: ignore[import-not-found, unused-ignore]  # the program's own folder is on its path
from taskiq import AsyncBroker  # type: ignore[import-not-found, unused-ignore]
from taskiq.cli.worker.args import WorkerArgs  # type: ignore[import-not-found, unused-ignore]
from taskiq.cli.worker.run import run_worker  # type: ignore[import-not-found, unused-ignore]
from taskiq_redis import RedisStreamBroker  # type: ignore[import-not-found, unused-ignore]

READ_COUNT = 100
SENT_AT_ONCE = 64
"""First hops that the feeder has on their way at a time: a sequential feeder would be slower than the workers."""
PAYLOAD = "x" * 1024

broker: AsyncBroker = RedisStreamBroker(
    os.environ["ROLLSTREAM_REDIS_URL"], consumer_id="0", xread_count=READ_COUNT, max_connection_pool_size=2 * SENT_AT_ONCE
)


async def _init(payload: str) -> None:
    await run.kiq(payload)


async def _run(payload: str) -> None:
    await evaluate.kiq(payload)


async def _evaluate(payload: str) -> None:
    """The last hop."""


init = broker.register_task(_init, task_name="init")
run = broker.register_task(_run, task_name="run")
evaluate = broker.register_task(_evaluate, task_name="evaluate")


async def feed(jobs: int) -> None:
    """Sends first hops."""
    await broker.startup()
    left = iter(range(jobs))

    async def send() -> None:
        for _ in left:
            await init.kiq(PAYLOAD)

    async with asyncio.TaskGroup() as tasks:
        for number in range(SENT_AT_ONCE):
            tasks.create_task(send(), name=f"feed-{number}")
    await broker.shutdown()


def main() -> None:
    """See the top of this file."""
    end_with_parent()
    what, number = sys.argv[1], int(sys.argv[2])
    if what == "feed":
        asyncio.run(feed(number))
    else:
        run_worker(WorkerArgs(broker="taskiq_hops:broker", modules=[], workers=number, log_level="ERROR", ack_type="when_executed"))


if __name__ == "__main__":
    main()
