"""What a launcher does for the log of its node: warnings copied to the state folder, room made, trouble told.

In a thread of its own, since the state folder may be on a file server that does not answer; nothing waits for this thread, but the end of
the launcher for `LEAVE_S`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
import structlog

from ops.child_processes import Child
from ops.logs.following import LogFollower
from ops.logs.lines import LEVELS, lines_of
from ops.logs.places import COPIED, NODE_LOG, scratch_folder, warnings_log
from ops.logs.reading import last_words
from pipeline.folders import Folders
from pipeline.log_file import SharedLogFile
from pipeline.logs import NodeLog, PatientLog, keep_node_log

log = structlog.get_logger(__name__)

LOOK_S = 1.0
LEAVE_S = 5.0
COPY_BYTES = 4 << 20
COPY_FILES = 4
"""Of the warnings of one node: homes have quotas, and there may be a hundred nodes."""
MOST_OUTPUT_BYTES = 8 << 20
"""Of what one process prints beside the log."""
WARNING = LEVELS.index("warning")


class LogKeeper:
    """Keeps the log of a node, from the entry to the exit of this context.

    Args:
        node_log: where it is.
        warnings: where warnings are copied to.
    """

    def __init__(self, node_log: NodeLog, warnings: Path) -> None:
        self._node_log = node_log
        self._folder = node_log.path.parent
        self._file = node_log.open()
        self._copy = SharedLogFile(warnings, max_bytes=COPY_BYTES, files=COPY_FILES)
        self._follower = LogFollower(node_log.path, _noted(self._folder / COPIED))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-log", daemon=True)
        self._own: PatientLog | None = None
        self._why_not_copied = ""
        self._said: set[str] = set()
        """What is in trouble, and was told."""

    @classmethod
    def of_node(cls, folders: Folders, node: str, *, max_mib: int, files: int) -> Self:
        """For a launcher that has the name of a node here."""
        path = scratch_folder(folders, node) / NODE_LOG
        return cls(NodeLog(path=path, node=node, max_bytes=max_mib << 20, files=files), warnings_log(folders, node))

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes of the node."""
        return self._node_log.for_children()

    def said_by(self, child: Child) -> str:
        """The last lines of one of them: of the log, and of what it printed."""
        return last_words(self._node_log.path, child.name, child.process.pid, printed=child.last_lines())

    def __enter__(self) -> Self:
        self._own = keep_node_log(self._node_log, lambda why, lost: None)  # this thread tells
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(LEAVE_S)

    def look(self) -> None:
        """One round, a second after the one before."""
        self._tell("log_not_written", "log_written", self._trouble(), path=str(self._node_log.path), what="work goes on, lines are dropped")
        self._tell(
            "warnings_not_copied", "warnings_copied", self._copied(), path=str(self._copy.path), what="they are copied once it works"
        )
        self._make_room()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()
        self.look()

    def _trouble(self) -> str:
        why = self._file.trouble()
        if not why and self._own is not None:
            why = self._own.retry()
        return why

    def _tell(self, event: str, ended: str, why: str, **fields: str) -> None:
        if why and event not in self._said:
            self._said.add(event)
            log.error(event, why=why, **fields)
        elif not why and event in self._said:
            self._said.discard(event)
            log.warning(ended, path=fields["path"])

    def _copied(self) -> str:
        """Why not; empty when all that is there is copied."""
        before, why, self._why_not_copied = dict(self._follower.places), "", ""
        try:
            for raw in self._follower.read():
                if not self._has_copied(raw):
                    self._follower.put_back(raw)
                    break
        except OSError as error:
            why = error.strerror or str(error)
        if self._follower.places != before:
            _note(self._folder / COPIED, self._follower.places)
        return why or self._why_not_copied

    def _has_copied(self, raw: bytes) -> bool:
        try:
            for line in lines_of(raw):
                if line.severity >= WARNING:
                    self._copy.write(line.raw + b"\n")
        except OSError as error:
            self._why_not_copied = error.strerror or str(error)
        return not self._why_not_copied

    def _make_room(self) -> None:
        for path in self._folder.glob("*.log"):
            with contextlib.suppress(OSError):
                if path.name != NODE_LOG and (size := path.stat().st_size) > MOST_OUTPUT_BYTES:
                    os.truncate(path, 0)
                    log.warning("output_emptied", process=path.stem, bytes=size, what="it prints more than anybody reads")


def _noted(path: Path) -> dict[str, int]:
    try:
        found = orjson.loads(path.read_bytes())
        return {str(name): int(at) for name, at in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _note(path: Path, places: dict[str, int]) -> None:
    """A note that cannot be written costs lines that are copied twice."""
    fresh = path.with_name(f"{path.name}.new")
    with contextlib.suppress(OSError):
        fresh.write_bytes(orjson.dumps(places))
        fresh.replace(path)
