"""`ops/launch down`: ends what this user left running on this machine, nodes and demos."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ops.demo.down import down as end_kept_demos
from ops.node.files import notes_here
from workers.sandbox.local.identity import send_signal, wait_ended

MARGIN_S = 15.0
"""A drain kills what is left at the end of its grace, and says so."""


def end_nodes_here(say: Callable[[str], object], folder: Path | None = None) -> bool:
    """Drains them, all at once, and waits for their ends; what dead launchers left ends as well.

    Args:
        say: told a line a node.
        folder: of the notes; by default that of this user.

    Returns:
        Whether all have ended.
    """
    found = list(notes_here(folder))
    if not found:
        say("no node is up")
    for _, note in found:
        if note.is_up:
            send_signal(note.launcher, signal.SIGTERM)
    all_ended = True
    for path, note in found:
        if note.is_up and wait_ended([note.launcher], note.grace_s + MARGIN_S):
            say(f"{note.node}: still draining; its logs: {note.logs}")
            all_ended = False
            continue
        for child in note.left:
            send_signal(child, signal.SIGTERM)
        for child in wait_ended(note.left, MARGIN_S):
            send_signal(child, signal.SIGKILL)
        path.unlink(missing_ok=True)
        say(f"{note.node}: ended")
    return all_ended


def main() -> int:
    """All of it; 1 when something does not end."""
    if sys.argv[1:]:
        print("./ops/launch down takes no arguments: it ends your nodes on this machine, and the demos that were kept")
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    return max(0 if end_nodes_here(print) else 1, end_kept_demos())


if __name__ == "__main__":
    sys.exit(main())
