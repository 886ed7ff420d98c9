"""Brings many images: some at once, none twice, and one that fails keeps no other from coming.

Resumable because it asks the store first: what is there is not fetched, so after an interruption the same command does the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

from pipeline.errors import RollstreamError
from workers.sandbox.images import ImageInterrupted, ImageStore, NameRecord

Progress = Callable[[str, str], None]
"""Name of an image, and what is being done with it. Called from several threads."""
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image to bring."""

    name: str
    source: str = ""
    """Where from; empty = the name says it."""


@dataclass(slots=True, kw_only=True)
class PullReport:
    """What became of each image, by name."""

    pulled: list[NameRecord] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    """Was there, and was not fetched."""
    failed: dict[str, str] = field(default_factory=dict)
    """Name -> why."""
    interrupted: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.failed and not self.interrupted

    def as_map(self) -> dict[str, object]:
        """For a program."""
        return {
            "pulled": {record.name: record.digest for record in self.pulled},
            "present": self.present,
            "failed": self.failed,
            "interrupted": self.interrupted,
        }


def pull_many(
    store: ImageStore,
    wanted: Sequence[Wanted],
    *,
    parallel: int,
    stop: threading.Event,
    refresh: bool = False,
    extract: bool = True,
    share: bool = False,
    progress: Progress = lambda name, words: None,
) -> PullReport:
    """Brings images, at most `parallel` at once. An image that is named twice is brought once.

    Args:
        stop: the same that the store has; set by a KeyboardInterrupt here, or by the caller: what runs is given up, the rest is not begun.
        refresh: fetch also what is there: a tag may mean another image now.
        extract, share: see `ImageStore.pull`.
    """
    report = PullReport()
    unique = list({one.name: one for one in wanted}.values())

    def bring(one: Wanted) -> NameRecord | None:
        if stop.is_set():
            raise ImageInterrupted(one.name, "not begun")
        say = partial(progress, one.name)
        if not refresh and store.is_here(one.name):
            if extract:
                store.lease(one.name, say).close()
            return None
        return store.pull(one.name, one.source, extract=extract, share=share, say=say)

    with ThreadPoolExecutor(max_workers=parallel, thread_name_prefix="image") as threads:
        running = {threads.submit(bring, one): one.name for one in unique}
        while running:
            try:
                done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    _note(report, running[future], future, stop.is_set(), progress)
                    del running[future]
            except KeyboardInterrupt:
                stop.set()
            except BaseException:
                stop.set()  # else the threads would go on to their end first
                raise
    return report


def _note(report: PullReport, name: str, future: Future[NameRecord | None], is_stopped: bool, progress: Progress) -> None:
    try:
        record = future.result()
    except ImageInterrupted:
        report.interrupted.append(name)
    except RollstreamError as error:
        if is_stopped:  # its program was ended for that
            report.interrupted.append(name)
            return
        report.failed[name] = str(error)
        progress(name, f"failed: {error}")
    else:
        if record is None:
            report.present.append(name)
            progress(name, "is there")
        elif record not in report.pulled:  # noted once, also when an interruption came between
            report.pulled.append(record)
            progress(name, f"is ready: {record.digest[:12]}")
