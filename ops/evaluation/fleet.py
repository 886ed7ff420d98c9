"""A worker a stage for one evaluation: children of the command, gone with it, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.child_processes import ChildProcesses
from pipeline.folders import Folders, make_folder
from pipeline.messages import Stage

STOP_GRACE_S = 10.0
"""Workers hand back what they hold within their own grace; sandboxes end with them."""
WORKER_GRACE_S = 2.0


@contextmanager
def workers_here(run: str, redis_url: str, *, slots: int | None, config: Path | None) -> Iterator[ChildProcesses]:
    """Workers of all stages that serve the queue, for as long as the block runs.

    Args:
        run: gives the node its name: another evaluation, or the node's own workers, have other names.
        redis_url: of the queue.
        slots: of RUN; None = its default.
    """
    logs = Folders.from_environment().state / "logs" / run
    make_folder(logs)
    with ChildProcesses(logs, {"ROLLSTREAM_REDIS_URL": redis_url}) as children:
        for stage in Stage:
            words = ["worker", "run", "--stage", stage.value, "--node", run, "--grace-s", f"{WORKER_GRACE_S:g}"]
            if slots is not None and stage is Stage.RUN:
                words += ["--slots", str(slots)]
            words += ["--config", str(config)] if config is not None else []
            children.start(stage.value, "ops.cli", *words)
        try:
            yield children
        finally:
            children.stop_all(grace_s=STOP_GRACE_S)
