"""A trainer that updates the weights of its servers, as a process that a test kills.

`python -m tests.integration.weight_update.updating_trainer URLS FIRST LAST MODE`: takes run1, attaches the servers (comma separated), and
updates to each version. `DIE_AFTER_LOADING=K` kills it in the block of its last update, after K servers were loaded. `AWAY=1`: each update
is inside an absence. `STOP_AFTER_LOADING=K` stops it there, as its machine might, until somebody lets it go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack

from pipeline.logs import configure_logs
from pipeline.settings import QueueSettings
from tests.integration.weight_update.loading import load, weights_of
from trainer_client import connect


async def main() -> None:
    urls, first, last, mode = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    dies_after = int(os.environ.get("DIE_AFTER_LOADING", "-1"))
    stops_after = int(os.environ.get("STOP_AFTER_LOADING", "-1"))
    configure_logs(as_json=True, level="warning")
    async with connect(QueueSettings.load(), run="run1") as run:
        await run.servers.attach(urls, control="trainer")
        for number in range(first, last + 1):
            async with AsyncExitStack() as stack:
                if os.environ.get("AWAY"):
                    await stack.enter_async_context(run.engines_away())
                servers = await stack.enter_async_context(run.weight_update(number, mode=mode))  # type: ignore[arg-type]  # one of its words
                for loaded, server in enumerate(servers):
                    if number == last and loaded == dies_after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    await load(server.url, weights_of(servers.version))
                    if loaded + 1 == stops_after:
                        os.kill(os.getpid(), signal.SIGSTOP)
                if number == last and dies_after == len(servers):
                    os.kill(os.getpid(), signal.SIGKILL)
            assert not servers.failed, servers.failed


if __name__ == "__main__":
    asyncio.run(main())
