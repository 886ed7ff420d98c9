"""What one worker process counts, where the launcher of its node can read it while it lives and after it was killed.

Each series has its place in an array of float64. The list of series is closed, so the places are known before the first count, and the head
of the file names them (a digest): who reads a file of another list knows that it is none of its own.

Invariants (docs/adr/0032-metrics.md):
  1. A count is an addition in memory: no lock, no call of the system, nothing that can fail. One thread counts, that of the event loop.
  2. The file is written once when it is made, so that its disk has room for it: a page that has none would kill who touches it.
  3. A folder that cannot be written stops no worker: it counts for itself then.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import structlog

from pipeline.attempts import Awaiting, End, GivenUp, HandedOff, Settled
from pipeline.folders import FolderError, make_private_folder
from pipeline.messages import Outcome, Stage

log = structlog.get_logger(__name__)

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the buckets of every histogram; what is longer is in one more."""
BUCKETS = len(SECONDS) + 1
ENDS = ("handed_off", "awaiting", *(outcome.value for outcome in Outcome), "failed", "lost", "back", "dead", "dropped")
RESULTS = ("ok", "failed")
FILE_SUFFIX = ".measures"
MAGIC = b"rollmeas"
HEAD_BYTES = 32
"""Magic, 16 bytes of the digest, and zeros: the array begins at a multiple of 8."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric of a worker. A histogram has 1 + B places for each combination of labels: the sum, then its buckets, not cumulated."""

    name: str
    """Without `rollstream_worker_`, and without `_total`."""
    kind: Kind
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name of each, and the values that it may have."""

    @property
    def combinations(self) -> list[tuple[str, ...]]:
        """Values of the labels, in order."""
        return list(product(*(values for _, values in self.labels)))

    @property
    def places(self) -> int:
        """Of one combination."""
        return 1 + BUCKETS if self.kind == "histogram" else 1


_STAGE = ("stage", tuple(stage.value for stage in Stage))
_RESULT = ("result", RESULTS)
MEASURES: tuple[Measure, ...] = (
    Measure("slots", "gauge", (_STAGE,)),
    Measure("busy_slots", "gauge", (_STAGE,)),
    Measure("claims", "counter", (_STAGE,)),
    Measure("retries", "counter", (_STAGE,)),
    Measure("attempts", "counter", (_STAGE, ("end", ENDS))),
    Measure("attempt_seconds", "histogram", (_STAGE,)),
    Measure("sandbox_starts", "counter", (_RESULT,)),
    Measure("sandbox_start_seconds", "histogram"),
    Measure("turn_seconds", "histogram"),
    Measure("model_calls", "counter", (_RESULT,)),
    Measure("model_call_seconds", "histogram"),
    Measure("sampled_tokens", "counter"),
)


def _placed() -> Mapping[tuple[str, tuple[str, ...]], int]:
    places, at = {}, 0
    for measure in MEASURES:
        for values in measure.combinations:
            places[measure.name, values] = at
            at += measure.places
    return places


PLACES = _placed()
"""(name, values of labels) -> first place in the array."""
LENGTH = sum(measure.places * len(measure.combinations) for measure in MEASURES)
DIGEST = hashlib.sha256(repr((MEASURES, SECONDS)).encode()).digest()[:16]
FILE_BYTES = HEAD_BYTES + 8 * LENGTH


class Number:
    """A counter or a gauge."""

    __slots__ = ("_array", "_at")

    def __init__(self, array: memoryview[float], at: int) -> None:
        self._array, self._at = array, at

    def add(self, by: float = 1.0) -> None:
        """Raises or lowers it."""
        self._array[self._at] += by


class Histogram:
    """Durations."""

    __slots__ = ("_array", "_at")

    def __init__(self, array: memoryview[float], at: int) -> None:
        self._array, self._at = array, at

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self._array[self._at] += seconds
        self._array[self._at + 1 + bisect_left(SECONDS, seconds)] += 1.0


class Measures:
    """The measures of a process that serves one stage.

    Args:
        array: float64, shape [LENGTH], zeros.
    """

    def __init__(self, stage: Stage, array: memoryview[float]) -> None:
        def number(name: str, *labels: str) -> Number:
            return Number(array, PLACES[name, labels])

        def histogram(name: str, *labels: str) -> Histogram:
            return Histogram(array, PLACES[name, labels])

        word = stage.value
        self.slots, self.busy_slots = number("slots", word), number("busy_slots", word)
        self.claims, self.retries = number("claims", word), number("retries", word)
        self.attempts: Mapping[str, Number] = {end: number("attempts", word, end) for end in ENDS}
        self.attempt_seconds = histogram("attempt_seconds", word)
        self.sandbox_starts: Mapping[str, Number] = {result: number("sandbox_starts", result) for result in RESULTS}
        self.sandbox_start_seconds = histogram("sandbox_start_seconds")
        self.turn_seconds = histogram("turn_seconds")
        self.model_calls: Mapping[str, Number] = {result: number("model_calls", result) for result in RESULTS}
        self.model_call_seconds = histogram("model_call_seconds")
        self.sampled_tokens = number("sampled_tokens")


def end_word(end: End | None) -> str:
    """What an attempt came to, of `ENDS`; None = another has the job. An end that handlers made up is a failed attempt (`fault_of`)."""
    word: object = "failed"
    if end is None:
        word = "dropped"
    elif isinstance(end, GivenUp):
        word = end.kind
    elif isinstance(end, HandedOff):
        word = "handed_off"
    elif isinstance(end, Awaiting):
        word = "awaiting"
    elif isinstance(end, Settled):
        word = end.settlement.outcome
    return str(word) if word in ENDS else "failed"


def unread_measures(stage: Stage) -> Measures:
    """Of a process without a launcher: nobody reads them."""
    return Measures(stage, memoryview(bytearray(8 * LENGTH)).cast("d"))


def kept_measures(stage: Stage, folder: Path | None, process: str) -> Measures:
    """Measures in `<folder>/<process>.<number of this process>.measures`. The file stays behind: who reads it removes it.

    Args:
        folder: of the node; None = nobody reads them.
        process: which of the node's it is, such as `run-0`.
    """
    if folder is not None:
        try:
            # mapped to the end of the process: work that was left behind may still count
            return Measures(stage, memoryview(_made(folder, process))[HEAD_BYTES:].cast("d"))
        except (OSError, FolderError) as error:
            log.warning("measures_not_kept", folder=str(folder), error=str(error), what="the worker goes on; its metrics are missing")
    return unread_measures(stage)


def _made(folder: Path, process: str) -> mmap.mmap:
    make_private_folder(folder)
    path = folder / f"{process}.{os.getpid()}{FILE_SUFFIX}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        head = (MAGIC + DIGEST).ljust(HEAD_BYTES, b"\0")
        os.write(fd, head + bytes(8 * LENGTH))
        os.fsync(fd)
        return mmap.mmap(fd, FILE_BYTES)
    finally:
        os.close(fd)


def read_measures(path: Path) -> memoryview[float] | None:
    """The numbers of a file: float64, shape [LENGTH]; None when it is no file of this list, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # a pipe would be waited for
        try:
            data = os.read(fd, FILE_BYTES + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
    except OSError:
        return None
    if len(data) != FILE_BYTES or not data.startswith(MAGIC + DIGEST):
        return None
    numbers = memoryview(data)[HEAD_BYTES:].cast("d")
    return numbers if all(map(math.isfinite, numbers)) else None
