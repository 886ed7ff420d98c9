"""The control groups of one sandbox, written down in its folder before anything is in them: whoever ends the sandbox finds them there."""

from __future__ import annotations

from pathlib import Path

import structlog

from workers.sandbox.errors import SandboxLeak
from workers.sandbox.limits import Cgroups, SandboxCgroup
from workers.sandbox.limits.cgroups import end_groups
from workers.sandbox.spec import Limits

GROUPS_FILE = "groups"
"""In the sandbox's folder: a path a line."""

log = structlog.get_logger(__name__)


def make_groups(cgroups: Cgroups, folder: Path, limits: Limits) -> SandboxCgroup | None:
    """The groups of the sandbox in that folder; None where there are none to be had. Blocks.

    Where the kernel refuses them the sandbox goes on without, as on a node that has none, and the watchdog bounds it: that is said in what
    it records as enforced.
    """
    try:
        made = cgroups.make(folder.name, limits)
    except OSError as error:
        log.warning("sandbox_without_cgroup", sandbox_id=folder.name, error=str(error))
        return None
    if made is not None:
        (folder / GROUPS_FILE).write_text("".join(f"{path}\n" for path in made.paths), encoding="utf-8")
    return made


def end_groups_of(folder: Path) -> None:
    """Ends what is left in the groups of a sandbox whose holder has ended, and removes them. Blocks.

    Raises:
        SandboxLeak: something in them does not end.
    """
    try:
        paths = (folder / GROUPS_FILE).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    left = end_groups(folder.name, paths)
    if left:
        raise SandboxLeak(folder.name, left)
