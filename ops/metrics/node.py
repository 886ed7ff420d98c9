"""The metrics of a node: what its processes count in their files, added up by its launcher (docs/adr/0032-metrics.md).

Invariants:
  1. What a process counted is in the sum once: from its file while it lives, and in `_past` from then on, when the file is gone.
  2. Of a process that has ended only what it did is left: its slots and what it had at work are not said any more.
  3. A file that is none of this list, or cannot be read, counts nothing and stops nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from ops.metrics.definitions import OF_A_NODE, Families
from ops.node.supervision import Process
from pipeline.folders import make_private_folder
from pipeline.process import software_version
from workers.stages.measures import BUCKETS, FILE_SUFFIX, LENGTH, MEASURES, PLACES, SECONDS, read_measures

log = structlog.get_logger(__name__)

STATES = ("up", "waiting", "stopping")


class NodeMetrics:
    """What one launcher answers; a context manager, from before its first process to after its last.

    Args:
        folder: where its processes keep their measures, and nothing else is.
    """

    def __init__(self, node: str, folder: Path) -> None:
        self._node, self._folder = node, folder
        self._past = [0.0] * LENGTH

    def text(self, processes: Sequence[Process]) -> bytes:
        """As it is scraped.

        Args:
            processes: of the node, as they stand.
        """
        families = Families(OF_A_NODE)
        families.say("rollstream_launcher_info", 1, self._node, software_version())
        for state in STATES:
            families.say("rollstream_launcher_processes", sum(each.state == state for each in processes), state)
        live = {each.pid for each in processes if each.runs}
        self.forget_ended(live)
        _say(families, self._sum(live))
        return families.text()

    def forget_ended(self, live: Collection[int]) -> None:
        """Keeps what processes counted that have ended, and removes their files.

        Args:
            live: numbers of those that run.
        """
        for path, number in self._files():
            if number in live:
                continue
            counted = read_measures(path)
            if _removed(path) and counted is not None:
                for at in _lasting():
                    self._past[at] += counted[at]

    def __enter__(self) -> Self:
        """Empties the folder.

        Raises:
            FolderError: it is not ours.
        """
        make_private_folder(self._folder)
        self._remove_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove_all()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _remove_all(self) -> None:
        for path, _ in self._files():
            _removed(path)

    def _sum(self, live: Collection[int]) -> list[float]:
        """float64, shape [LENGTH]."""
        total = list(self._past)
        for path, number in self._files():
            if number in live and (counted := read_measures(path)) is not None:
                total = [mine + more for mine, more in zip(total, counted, strict=True)]
        return total

    def _files(self) -> Iterator[tuple[Path, int]]:
        """Each, with the number of the process that made it."""
        for path in sorted(self._folder.glob(f"*{FILE_SUFFIX}")):
            number = path.name.removesuffix(FILE_SUFFIX).rpartition(".")[2]
            if number.isdecimal():
                yield path, int(number)


def _removed(path: Path) -> bool:
    """Whether it is gone now; what cannot be removed is not counted, as it would be again each time."""
    try:
        path.unlink()
    except OSError as error:
        log.warning("measures_not_removed", file=str(path), error=str(error), do="remove it: it is none of the node's")
        return False
    return True


def _lasting() -> Iterator[int]:
    """Places of what stays done when its process has ended."""
    for measure in MEASURES:
        if measure.kind != "gauge":
            for values in measure.combinations:
                yield from range(PLACES[measure.name, values], PLACES[measure.name, values] + measure.places)


def _say(families: Families, numbers: Sequence[float]) -> None:
    for measure in MEASURES:
        name = f"rollstream_worker_{measure.name}"
        for values in measure.combinations:
            at = PLACES[measure.name, values]
            if measure.kind == "histogram":
                families.say_histogram(name, SECONDS, numbers[at + 1 : at + 1 + BUCKETS], numbers[at], *values)
            else:
                families.say(f"{name}_total" if measure.kind == "counter" else name, numbers[at], *values)
