"""`rollstream node logs`: the last lines, then those that come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from ops.logs.lines import LEVELS, Line
from ops.logs.places import WARNINGS_LOG, found_logs
from ops.logs.reading import Wanted, followed_lines, last_lines
from ops.logs.view import as_text
from pipeline.errors import InvalidRequest
from pipeline.folders import Folders


def show_logs(node: str, *, follow: bool, level: str, unit: str, process: str, most: int, as_json: bool) -> int:
    """Prints to standard output; returns the exit code.

    Raises:
        InvalidRequest: there is no such level.
    """
    if level not in LEVELS:
        raise InvalidRequest(f"{level!r} is no level: expected one of {', '.join(LEVELS)}", field="--level")
    folders = Folders.from_environment()
    found = found_logs(folders, node)
    if not found and not follow:
        print(_none(folders, node), file=sys.stderr)
        return 1
    if afar := [name for name, path in found.items() if path.name == WARNINGS_LOG]:
        print(f"of {', '.join(afar)} only warnings and errors: the whole log is on the node's own disk", file=sys.stderr)
    wanted = Wanted(level=level, unit=unit, process=process)
    out = _Printer(with_node=not node, as_json=as_json)
    try:
        # first the place from which to follow, then what was before: a line that comes between is shown once or twice, not never
        coming = followed_lines(lambda: found_logs(folders, node), wanted)
        if follow:
            next(coming)
        lines = last_lines(found, wanted, most)
        out.show(lines)
        if unit and not lines and not follow:
            print(_silent(found, wanted), file=sys.stderr)
            return 1
        while follow:
            out.show(next(coming))
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # `| head` has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _Printer:
    def __init__(self, *, with_node: bool, as_json: bool) -> None:
        self._with_node, self._as_json = with_node, as_json
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def show(self, lines: Iterable[tuple[str, Line]]) -> None:
        for node, line in lines:
            if self._as_json:
                print((orjson.dumps(line.fields) if line.is_unreadable else line.raw).decode("utf-8", "replace"))
            else:
                for text in as_text(node, line, with_node=self._with_node, colour=self._colour):
                    print(text)
        sys.stdout.flush()


def _silent(found: Mapping[str, Path], wanted: Wanted) -> str:
    others = f" of level {wanted.level} and above" if wanted.level != "debug" else ""
    others += f" of process {wanted.process}" if wanted.process else ""
    return f"no line{others} names {wanted.unit} in the logs of {', '.join(found)}: `rollstream job show` has what Redis knows of a job"


def _none(folders: Folders, node: str) -> str:
    who = f"of node {node} " if node else ""
    return (
        f"no log {who}in {folders.scratch / 'logs'} or {folders.state / 'logs'}: `rollstream node list` has the nodes there are; "
        "ROLLSTREAM_SCRATCH_DIR and ROLLSTREAM_STATE_DIR must be those of the node"
    )
