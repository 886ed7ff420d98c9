"""The process behind a demo: it holds the server and runs a node's processes, until it is told to stop or one of them fails.

`python -m ops.demo.host RUN SLOTS MODEL TASK`. With `ROLLSTREAM_PARENT_FD` it ends with the process that started it; without (--keep) it
stays until SIGTERM. What it starts ends with it in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys

from ops.child_processes import ChildEnded, ChildProcesses
from ops.demo.models import MODEL_NAMES, DemoModel, demo_model
from ops.demo.places import PREFIX, Places, kept_demos, places_of, write_state
from ops.demo.tasks import TASKS
from ops.node.processes import Commands
from ops.node.restarts import RestartPolicy
from ops.node.supervision import Supervision
from pipeline.embedded import open_redis
from pipeline.keys import Keys
from pipeline.logs import configure_logs, redact_text
from pipeline.messages import CancelReason, Stage
from pipeline.process import Shutdown
from pipeline.redis_client import ask, command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from workers.sandbox.local import sweep
from workers.sandbox.service.settings import SANDBOXES

WORKER_GRACE_S = 2.0
STOP_GRACE_S = 8.0
"""Of all processes together, which end in the order of a node's drain."""


def main() -> int:
    """Runs the host; 1 when one of its processes failed."""
    run, slots = sys.argv[1], int(sys.argv[2])
    model = demo_model(next(name for name in MODEL_NAMES if name == sys.argv[3]), TASKS[sys.argv[4]])
    configure_logs(as_json=False)
    places = places_of(run)
    try:
        return asyncio.run(_host(places, slots, model))
    except ChildEnded as ended:
        print(f"{ended}\n{redact_text(ended.tail)}", file=sys.stderr)
        return 1
    finally:
        places.state_file.unlink(missing_ok=True)
        places.model_socket.unlink(missing_ok=True)
        asyncio.run(sweep(places.scratch / SANDBOXES, lambda _: False))  # of a service that was killed
        for folder in (places.scratch, places.sandbox_run):
            shutil.rmtree(folder, ignore_errors=True)


async def _host(places: Places, slots: int, model: DemoModel) -> int:
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    environment = {
        "ROLLSTREAM_SCRATCH_DIR": str(places.scratch),
        "ROLLSTREAM_SANDBOX_RUN_DIR": str(places.sandbox_run),
        "ROLLSTREAM_SANDBOX_BACKEND": "process",  # what the demo's model writes is known
        "ROLLSTREAM_SANDBOX_AUTOSTART": "false",
        "ROLLSTREAM_LEASE_S": "15",
    }
    with open_redis() as address, ChildProcesses(places.logs, {**environment, "ROLLSTREAM_REDIS_URL": address.url}) as children:
        await end_stranded_runs(address.url)
        model.start(children, places)
        node = Supervision(children, RestartPolicy(crashes=0))
        start_processes(node, places, slots)
        write_state(places, redis_url=address.url, model_url=await _address(model, places, children, shutdown))
        print("ready", flush=True)
        watch = asyncio.create_task(children.watch(), name="children")
        stop = asyncio.create_task(shutdown.stop.wait(), name="stop")
        done, _ = await asyncio.wait((watch, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        watch.cancel()
        if watch in done:
            watch.result()  # raises what ended
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await node.drain(STOP_GRACE_S, shutdown.hurry)
    return 0


async def end_stranded_runs(redis_url: str) -> None:
    """Cancels what demos left that failed or were killed: their model is gone, and our workers would take their jobs up."""
    settings = QueueSettings.load(redis_url=redis_url)
    client = command_client(settings)
    try:
        up = {state.run for _, state in kept_demos() if state.is_up()}
        for shard in range(settings.shards):
            keys = Keys.of_shard(settings.namespace, shard)
            for name in await ask(client, "ZRANGE", keys.key("runs"), 0, -1):
                run = name.decode()
                if run.startswith(PREFIX) and run not in up:
                    await Scripts(client, keys).cancel("run", [run], CancelReason.USER.value)
    finally:
        await client.aclose()


def start_processes(node: Supervision, places: Places, slots: int) -> None:
    """A node's processes and a supervisor."""
    commands = Commands(node=places.run, grace_s=WORKER_GRACE_S)
    sizes = {stage: slots if stage is Stage.RUN else max(2, slots // 8) for stage in Stage}
    node.start(commands.service(), *(commands.worker(stage, 0, sizes[stage]) for stage in Stage), commands.supervisor())


async def _address(model: DemoModel, places: Places, children: ChildProcesses, shutdown: Shutdown) -> str:
    """The model's address once it serves; empty when the demo is told to stop before."""
    while not (found := await asyncio.to_thread(model.address, places)) and not shutdown.stop.is_set():
        children.check()
        await asyncio.sleep(0.05)
    return found


if __name__ == "__main__":
    sys.exit(main())
