"""What starts the processes of a node and answers for them, to be killed: `python -m tests.faults.launcher_program LOGS`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ops.child_processes import ChildProcesses
from pipeline.messages import Stage


def main() -> None:
    # the service is the launcher's to start, not a worker's that comes before it
    with ChildProcesses(Path(sys.argv[1]), {"ROLLSTREAM_SANDBOX_AUTOSTART": "false"}) as children:
        children.start("service", "ops.cli", "sandbox", "serve", "--node", "n1", "--log-json")
        for stage in Stage:
            words = ("--stage", stage.value, "--node", "n1", "--slots", "8", "--grace-s", "1", "--log-json")
            children.start(stage.value, "ops.cli", "worker", "run", *words)
        signal.pause()


if __name__ == "__main__":
    main()
