"""How much memory this process took at most while something ran."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOK_S = 0.005


class Growth:
    """The largest resident size seen, above that at the beginning."""

    def __init__(self) -> None:
        self.peak_mb = 0.0


@contextmanager
def memory_growth() -> Iterator[Growth]:
    """Looks from a thread every few milliseconds: a peak of the whole process would hide behind that of an earlier test."""
    process, growth, over = psutil.Process(), Growth(), threading.Event()
    before = process.memory_info().rss

    def look() -> None:
        while True:
            growth.peak_mb = max(growth.peak_mb, (process.memory_info().rss - before) / 2**20)
            if over.wait(LOOK_S):
                return

    watcher = threading.Thread(target=look, name="memory growth")
    watcher.start()
    try:
        yield growth
    finally:
        over.set()
        watcher.join()
