"""A process that hosts parts of several fleets, each in a namespace of its own: rollouts that sleep leave a core to many.

`python -m ops.bench.dapo_host workers ACCOUNTS SCRATCH NAMESPACE:SLOTS...` serves all stages, `SLOTS` of RUN;
`python -m ops.bench.dapo_host supervisors NAMESPACE...` supervises. The server comes from the environment.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ops.bench.dapo_task import TASK, SleepingTask
from pipeline.event_loop import run_process
from pipeline.logs import configure_logs
from pipeline.messages import Stage
from pipeline.process import Shutdown
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from workers.settings import WorkerSettings
from workers.worker import serve

NODE = "bench"
OTHER_SLOTS = 32
"""Of INIT and EVAL, which are done at once."""
GRACE_S = 0.1


async def serve_fleets(accounts: Path, scratch: Path, fleets: Sequence[str], shutdown: Shutdown) -> None:
    """All stages of some fleets, until shut down."""
    settings = QueueSettings.load()
    handlers = {TASK: partial(SleepingTask, accounts)}
    async with asyncio.TaskGroup() as tasks:
        for namespace, slots in (fleet.split(":") for fleet in fleets):
            queue = settings.model_copy(update={"namespace": namespace})
            for stage in Stage:
                worker = WorkerSettings(
                    stage=stage,
                    node=NODE,
                    slots=int(slots) if stage is Stage.RUN else OTHER_SLOTS,
                    scratch_dir=scratch / namespace,
                    grace_s=GRACE_S,
                )
                tasks.create_task(serve(queue, worker, shutdown, handlers=handlers), name=f"{stage}-{namespace}")


async def supervise_fleets(namespaces: Sequence[str], shutdown: Shutdown) -> None:
    """A supervisor for each of some fleets, until shut down."""
    settings = QueueSettings.load()
    async with asyncio.TaskGroup() as tasks:
        for namespace in namespaces:
            supervisor = Supervisor(settings.model_copy(update={"namespace": namespace}), name=NODE)
            tasks.create_task(supervisor.run(shutdown.stop), name=f"supervisor-{namespace}")


async def main() -> None:
    configure_logs(as_json=True, level="warning")
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    match sys.argv[1:]:
        case ["workers", accounts, scratch, *fleets]:
            await serve_fleets(Path(accounts), Path(scratch), fleets, shutdown)
        case ["supervisors", *namespaces]:
            await supervise_fleets(namespaces, shutdown)
        case arguments:
            raise SystemExit(f"expected workers or supervisors, got {arguments}")


if __name__ == "__main__":
    run_process(main())
