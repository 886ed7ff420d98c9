"""The file that tells programs where a server is: there while it serves, whole or not at all.

It names the command that keeps the server, so that one left by a command that was killed is known as such.
"""

from __future__ import annotations

import contextlib
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import orjson

from pipeline.folders import make_folder


def write_state(path: Path, *, url: str, run: str, **facts: str | int) -> None:
    """Says where a server is.

    Args:
        run: that it serves; empty = none.
        facts: whatever else people and programs may want to know.
    """
    content = {
        "url": url,
        "run": run,
        **facts,
        "pid": os.getpid(),
        "machine": socket.gethostname(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    make_folder(path.parent)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    draft.replace(path)


def left_by_the_dead(state_file: Path, run: str) -> list[str]:
    """Address of a server whose command was killed on this machine before it could take it from the run."""
    with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
        content = orjson.loads(state_file.read_bytes())
        if content["run"] == run and content["machine"] == socket.gethostname() and not _runs(content["pid"]):
            return [str(content["url"])]
    return []


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_state(path: Path) -> None:
    """Only our own: another server may have written its address over ours."""
    with contextlib.suppress(FileNotFoundError, orjson.JSONDecodeError, KeyError):
        content = orjson.loads(path.read_bytes())
        if (content["pid"], content["machine"]) == (os.getpid(), socket.gethostname()):
            path.unlink()
