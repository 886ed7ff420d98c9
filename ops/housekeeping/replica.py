"""One replica of housekeeping: the cron here, and a worker process a queue.

    replica ── cron (every replica has one; ticks are enqueued once, whoever is first)
       ├── worker of `housekeeping`     sweeps, reports, exports
       ├── worker of `images`           pulls and builds, which take hours
       └── worker of `node-<name>`      leftovers and images of this machine

1. A worker that ends unasked is started again, later each time; one that ran for a while begins anew at the first pause.
2. SIGTERM: nothing is enqueued any more, each worker finishes the job it has within the grace, then the rest is killed: another replica, or
   the next tick, does it.
3. However the replica ends, its workers end with it (`ops/child_processes.py`). A job that runs in that moment goes on to its end in its
   own process, or is killed with it: both are harmless.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from ops.child_processes import Child, ChildProcesses, log_tail
from ops.housekeeping.queue import HousekeepingQueue
from pipeline.folders import Folders

log = structlog.get_logger(__name__)

WORKER = "ops.housekeeping.worker_process"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 120.0
"""A worker that ran for so long was fine."""
GRACE_S = 30.0


@dataclass(slots=True)
class Post:
    """One queue, and the worker that it has."""

    queue: str
    child: Child | None = None
    pause_s: float = FIRST_PAUSE_S
    not_before_s: float = field(default=0.0)


class Workers:
    """The worker processes of a replica."""

    def __init__(self, children: ChildProcesses, queues: list[str]) -> None:
        self._children = children
        self._posts = [Post(queue) for queue in queues]

    def tend(self) -> None:
        """Starts what does not run and may be started again."""
        now_s = time.monotonic()
        for post in self._posts:
            if post.child is not None and post.child.exit_code is None:
                continue
            if post.child is not None:
                ran_s = now_s - post.child.started_s
                post.pause_s = FIRST_PAUSE_S if ran_s >= STEADY_S else min(LONGEST_PAUSE_S, 2 * post.pause_s)
                post.not_before_s = now_s + post.pause_s
                log.error("housekeeping_worker_ended", queue=post.queue, code=post.child.exit_code, tail=log_tail(post.child.log))
                post.child = None
            if now_s >= post.not_before_s:
                post.child = self._children.start(post.queue, WORKER, post.queue)


def run_replica(housekeeping: HousekeepingQueue, *, redis_url: str, grace_s: float = GRACE_S) -> None:
    """Runs a replica until SIGTERM.

    Args:
        redis_url: of the queue of rollouts, as this process found it: its children join that one.
        grace_s: workers have this long for the jobs that they have.
    """
    housekeeping.import_rq()
    from rq.exceptions import StopRequested

    from ops.housekeeping.cron import OurCron, entries

    lines = entries(housekeeping)
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"  # RQ refuses a name that a killed one left in its registry
    log.info("housekeeping_runs", name=name, node=housekeeping.settings.this_node, jobs={line.name: line.every_s for line in lines})
    with ChildProcesses(logs_folder(name), {"ROLLSTREAM_REDIS_URL": redis_url}) as children:
        workers = Workers(children, list(dict.fromkeys((housekeeping.shared, housekeeping.images, housekeeping.own))))
        with contextlib.suppress(StopRequested):  # told to stop before it had begun
            OurCron(housekeeping, lines, name=name, tend=workers.tend).start()  # type: ignore[no-untyped-call]  # RQ's
        killed = children.stop_all(grace_s=grace_s)
    log.info("housekeeping_ended", name=name, killed=killed)


def logs_folder(name: str) -> Path:
    """Where the workers of a replica log."""
    return Folders.from_environment().state / "logs" / f"housekeeping-{name}"


__all__ = ["run_replica"]
