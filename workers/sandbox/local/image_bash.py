"""Whether an image has the bash that every sandbox needs as its first process: a node is not to blame for an image without one."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from workers.sandbox.local.environment import INSIDE_PATH

MOST_LINKS = 40
MACHINE = slice(18, 20)
"""Of an ELF file: what processor it is for."""


def why_no_bash(root: Path) -> str:
    """Why nothing starts from this tree; empty when its bash looks well, or when the image is one file. Blocks."""
    if not root.is_dir():
        return ""
    for folder in INSIDE_PATH.split(":"):
        found = _within(root, f"{folder}/bash")
        if found is not None and stat.S_ISREG(found.stat().st_mode):
            return _why_not_run(found)
    return "it has no bash, which every sandbox needs as its first process"


def _why_not_run(program: Path) -> str:
    if not program.stat().st_mode & 0o111:
        return "its bash may not be executed"
    with program.open("rb") as file, open(sys.executable, "rb") as ours:
        theirs, own = file.read(20), ours.read(20)
    if theirs[:4] == own[:4] == b"\x7fELF" and theirs[MACHINE] != own[MACHINE]:
        return "its bash is for another processor than this node has"
    return ""


def _within(root: Path, path: str) -> Path | None:
    """Where a path leads when the tree is the root; None = nowhere. No link leads out of the tree."""
    left = path.strip("/").split("/")[::-1]
    here, links = root, 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = here.parent if here != root else root
            continue
        at = here / part
        try:
            mode = at.lstat().st_mode
        except OSError:
            return None
        if not stat.S_ISLNK(mode):
            here = at
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        target = os.readlink(at)
        here = root if target.startswith("/") else here
        left += target.split("/")[::-1]
    return here
