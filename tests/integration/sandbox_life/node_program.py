"""A node's service as a process, to be killed: `python node_program.py BACKEND PLACE`. Prints `ready` when it serves.

The janitor makes its rounds every second, so that a test need not wait for a minute.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from pipeline.testing.wait import wait_until
from workers.sandbox.choice import choose_backend
from workers.sandbox.service.server import SOCKET_NAME
from workers.sandbox.service.serving import serve_sandboxes
from workers.sandbox.service.settings import SandboxSettings

JANITOR_S = 1.0


async def main() -> None:
    name, place = sys.argv[1], Path(sys.argv[2])
    scratch, run = place / "s", place / "run"
    choice = await choose_backend(name, scratch_dir=scratch, run_dir=run)
    if choice.backend is None:
        raise SystemExit(choice.why_none())
    stop, hurry = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = SandboxSettings(backend=name, run_dir=run, scratch_dir=scratch, grace_s=0.0, janitor_s=JANITOR_S)
    (run / SOCKET_NAME).unlink(missing_ok=True)
    telling = asyncio.create_task(tell(run))
    await serve_sandboxes(settings, choice.backend, choice.probes[name], node="here", stop=stop, hurry=hurry)
    await telling


async def tell(run: Path) -> None:
    await wait_until(lambda: (run / SOCKET_NAME).exists(), "it serves", timeout_s=60)
    print("ready", flush=True)


asyncio.run(main())
