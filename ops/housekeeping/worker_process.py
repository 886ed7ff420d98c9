"""`python -m ops.housekeeping.worker_process QUEUE`: one RQ worker, which ends when the process that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading

from ops.housekeeping.queue import HousekeepingQueue
from ops.housekeeping.settings import HousekeepingSettings
from pipeline.logs import configure_logs
from pipeline.process import PARENT_FD
from pipeline.settings import QueueSettings


def end_with_parent() -> None:
    """Asks this process to stop when the pipe of its parent ends; a second time, which does not wait for a job, ten seconds later."""
    number = os.environ.get(PARENT_FD)
    if not number:
        return

    def watch() -> None:
        os.read(int(number), 1)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    """Works the queue of its argument until SIGTERM."""
    configure_logs(as_json=True)
    end_with_parent()
    with HousekeepingQueue(HousekeepingSettings.load(), QueueSettings.load()) as housekeeping:
        housekeeping.work(sys.argv[1], burst=False)


if __name__ == "__main__":
    main()
