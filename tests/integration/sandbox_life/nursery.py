"""Makes the processes of nodes that are to be killed: one for each line of JSON on its input.

A process that imports everything anew takes most of a second to come up; here each is forked from one that has imported it already. What it
says goes to our output as `WORD PID WHAT`; the first it says is `born`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import failpoints
from tests.integration.sandbox_life.node_service import serve
from tests.integration.sandbox_life.node_worker import live


def become(wanted: dict[str, Any], output: int) -> None:
    """Is the process that was asked for, to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(wanted.pop("environment"))
    importlib.reload(failpoints)  # it reads the environment once
    word, place = wanted.pop("word"), Path(wanted.pop("place"))

    def say(what: str) -> None:
        os.write(output, f"{word} {os.getpid()} {what}\n".encode())

    say("born")
    role = wanted.pop("role")
    roles: dict[str, Callable[..., Coroutine[None, None, None]]] = {"service": serve, "worker": partial(live, word=word)}
    asyncio.run(roles[role](place, say=say, **wanted))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    output = os.dup(1)
    os.dup2(2, 1)  # their logs
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                become(json.loads(line), output)
            finally:
                sys.stdout.flush()
                os._exit(0)


if __name__ == "__main__":
    main()
