"""A server whose clock can be set: Debian's libfaketime in front of a Redis that links to libc, told by a file.

Where that library is not installed the server's clock stays, and the clock of the worker processes jumps instead: the same story, seen
from the client (`ROLLSTREAM_TEST_CLOCK_FILE`, read by `pipeline.testing.acting_worker`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.testing.acting_worker import CLOCK_FILE
from tests.cases.areas.redis_stage import QueueStage, queue_stage

LIBRARIES = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1")

Jump = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def server_with_a_clock_of_its_own(*, lease_s: float) -> AsyncIterator[tuple[QueueStage, Jump]]:
    """A stage, and a function that moves the clock by so many seconds."""
    with TemporaryDirectory(prefix="clock-") as folder:
        at = Path(folder) / "offset"
        at.write_text("+0", encoding="ascii")
        offset = 0.0

        async def jump(seconds: float) -> None:
            nonlocal offset
            offset += seconds
            at.write_text(f"{offset:+.0f}", encoding="ascii")

        library = next((name for name in LIBRARIES if os.path.exists(name)), "")  # noqa: ASYNC240  # once, before anything runs
        if library:
            preload = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(at), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}
            opened = queue_stage(lease_s=lease_s, server_environment=preload)
        else:
            opened = queue_stage(lease_s=lease_s, worker_environment={CLOCK_FILE: str(at)})
        async with opened as stage:
            yield stage, jump
