"""Three hops on RQ, without results: each job sends the next.

`rq_hops.py fork` and `rq_hops.py simple` are a worker, until it is stopped: RQ's default one, with a process a job, or the one that does
not fork. `rq_hops.py feed JOBS` sends that many first hops and ends.
"""

from __future__ import annotations

import os
import sys

from leash import end_with_parent  # type: ignore[import-not-found, unused-ignore]  # the program's own folder is on its path
from redis import Redis
from rq import Queue, SimpleWorker, Worker, get_current_job

PAYLOAD = "x" * 1024
QUEUE = "hops"


def init(payload: str) -> None:
    _send("run", payload)


def run(payload: str) -> None:
    _send("evaluate", payload)


def evaluate(payload: str) -> None:
    """The last hop."""


def _send(what: str, payload: str) -> None:
    job = get_current_job()
    assert job is not None
    Queue(QUEUE, connection=job.connection).enqueue(f"rq_hops.{what}", payload, result_ttl=0)


def main() -> None:
    """See the top of this file."""
    end_with_parent()
    connection = Redis.from_url(os.environ["ROLLSTREAM_REDIS_URL"])
    queue = Queue(QUEUE, connection=connection)
    if sys.argv[1] == "feed":
        queue.enqueue_many([Queue.prepare_data("rq_hops.init", args=(PAYLOAD,), result_ttl=0) for _ in range(int(sys.argv[2]))])
    else:
        kind = Worker if sys.argv[1] == "fork" else SimpleWorker
        kind([queue], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main()
