"""A user of an embedded server as a process of its own, to be killed. Speaks JSON lines; obeys one command a line.

python user_program.py DATA_DIR RUN_DIR

increment N     adds one to the key "count" N times and says each value once it was acknowledged
spawn           starts a child program that ends with its standard input, which is the test's FIFO, and says its pid
fork            forks a child that lives until that FIFO ends, and says its pid
close           lets go, and says so
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import redis
import structlog
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from pipeline.embedded import EmbeddedServer, embedded_redis


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def increment(server: EmbeddedServer, times: int) -> None:
    """Says only what Redis has acknowledged; an increment whose reply was lost may count without having been said."""
    client = redis.Redis.from_url(server.url, retry=Retry(ConstantBackoff(0.02), 500), retry_on_error=[redis.ConnectionError])
    for _ in range(times):
        say(acknowledged=client.incr("count"))


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # standard output is for what it says to the test
    data_dir, run_dir = Path(sys.argv[1]), Path(sys.argv[2])
    with embedded_redis(data_dir, run_dir=run_dir) as server:
        say(server=server.pid, keeper=server.keeper_pid, url=server.url)
        for line in sys.stdin:
            match line.split():
                case ["increment", times]:
                    increment(server, int(times))
                case ["spawn", fifo]:
                    with open(fifo, "rb") as held:
                        say(child=subprocess.Popen(["cat"], stdin=held, stdout=subprocess.DEVNULL, start_new_session=True).pid)
                case ["fork", fifo]:
                    child = os.fork()
                    if child == 0:
                        with open(fifo, "rb") as held:
                            held.read()
                        os._exit(0)
                    say(child=child)
                case ["close"]:
                    server.close()
                    say(closed=True)


if __name__ == "__main__":
    main()
