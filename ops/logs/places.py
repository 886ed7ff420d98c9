"""Where logs of nodes are.

SCRATCH/logs/<node>/node.log        all that the node's processes log; on the node's own disk
SCRATCH/logs/<node>/<process>.log   what a process prints beside that
SCRATCH/logs/<node>/copied          what of it was copied to the next
STATE/logs/<node>/warnings.log      warnings and errors of it; may be seen by all machines
"""

from __future__ import annotations

from pathlib import Path

from ops.node.files import notes_here
from pipeline.folders import Folders

NODE_LOG = "node.log"
WARNINGS_LOG = "warnings.log"
COPIED = "copied"
FOLDER = "logs"


def scratch_folder(folders: Folders, node: str) -> Path:
    """Of a node's log."""
    return folders.scratch / FOLDER / node


def warnings_log(folders: Folders, node: str) -> Path:
    """Of a node's warnings."""
    return folders.state / FOLDER / node / WARNINGS_LOG


def found_logs(folders: Folders, node: str = "") -> dict[str, Path]:
    """Node -> its log if it is of this machine, else its warnings.

    Args:
        node: this one only; empty = all.
    """
    found = {path.parent.name: path for path in (folders.state / FOLDER).glob(f"*/{WARNINGS_LOG}")}
    found |= {path.parent.name: path for path in (folders.scratch / FOLDER).glob(f"*/{NODE_LOG}")}
    # a node may have another scratch folder than this command
    found |= {note.node: path for _, note in notes_here() if (path := Path(note.logs) / NODE_LOG).exists()}
    return {name: path for name, path in sorted(found.items()) if node in ("", name)}
