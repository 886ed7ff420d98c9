"""The processes that a run needs, on this machine: Redis, a worker a stage, a supervisor, a sandbox service, the model's server.

Everything is private to the folder of the run and listens on Unix sockets. What Redis keeps lies there too, so a run that was stopped goes
on. All of it ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ops.child_processes import ChildProcesses
from pipeline.embedded import open_redis
from pipeline.settings import QueueSettings

NODE = "tiny"
START_S = 60.0
STOP_GRACE_S = 4.0
SERVICE = "sandboxes"
"""Stops last: workers that drain use it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs."""

    settings: QueueSettings
    model_url: str
    children: ChildProcesses


@contextlib.contextmanager
def running_fleet(out: Path, checkpoint: Path, *, slots: int, sandbox: str) -> Iterator[Fleet]:
    """Starts them; they are stopped when the block ends.

    Args:
        checkpoint: folder of what the model's server begins with.
        slots: rollouts at once.
        sandbox: backend of the sandboxes; `auto` = the best that works here.

    Raises:
        ChildEnded: one of them did not start; says where its log is.
    """
    with TemporaryDirectory(prefix="rs-tiny-") as short:  # addresses of sockets have to be short
        environment = _environment(out, Path(short), sandbox)
        socket = Path(short) / "model"
        with open_redis(environ={**os.environ, **environment}) as address:
            workers = {**environment, "ROLLSTREAM_REDIS_URL": address.url}
            with ChildProcesses(out / "logs", workers) as children:
                _start(children, checkpoint, socket, slots)
                _wait(children, socket)
                yield Fleet(QueueSettings.load(redis_url=address.url_with_password()), f"unix:{socket}", children)
                children.stop_all(grace_s=STOP_GRACE_S, but=(SERVICE,))


def _environment(out: Path, short: Path, sandbox: str) -> Mapping[str, str]:
    return {
        "ROLLSTREAM_REDIS_URL": "",
        "ROLLSTREAM_RUN_DIR": str(short / "run"),
        "ROLLSTREAM_SCRATCH_DIR": str(short / "scratch"),
        "ROLLSTREAM_DATA_DIR": str(out / "redis"),
        "ROLLSTREAM_STATE_DIR": str(out / "state"),
        "ROLLSTREAM_SANDBOX_BACKEND": sandbox,
        "ROLLSTREAM_SANDBOX_AUTOSTART": "false",
        "OMP_NUM_THREADS": "1",
    }


def _start(children: ChildProcesses, checkpoint: Path, socket: Path, slots: int) -> None:
    children.start("model", "workers.llm.tiny", str(checkpoint), "--socket", str(socket), "--max-running", str(slots))
    children.start(SERVICE, "ops.cli", "sandbox", "serve", "--node", NODE)
    for stage, places in (("init", 4), ("run", slots), ("eval", 4)):
        words = ("--stage", stage, "--node", NODE, "--slots", str(places), "--grace-s", "2")
        children.start(stage, "ops.cli", "worker", "run", *words)
    children.start("supervisor", "ops.cli", "supervisor", "run", "--name", NODE)


def _wait(children: ChildProcesses, socket: Path) -> None:
    """The model's socket is there when it listens; jobs wait for the others by themselves."""
    deadline_s = time.monotonic() + START_S
    while not socket.exists():
        children.check()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the model's server did not start within {START_S:g} s; its log: {children.children[0].log}")
        time.sleep(0.05)
