"""Makes a repository forget everything that is later than a commit, so that nobody can look the repair up in it.

Invariants
    - What is left in the repository's folder is what the commit can reach: no other object, packed or loose, no ref, reflog, stash,
      remote, replacement or alternate. It is built anew from the commit, with a list of what is kept, not cleaned of what is known.
    - This is proved before the call returns: the objects there are compared with those that the commit and the tags reach.
    - The work tree is that of the commit and untouched otherwise: what is ignored or untracked stays, and so do changes of tracked files
      where HEAD is that commit already. The repository works: log, diff, blame, commit, `describe` by tags that are not later.
    - Submodules that are checked out are treated in the same way, at the commit that the base commit names.
    - It works in the sandbox before any agent has been there: what git says is believed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib.resources import files

from workers.graders.errors import GraderError
from workers.sandbox import Sandbox

HIDE_LIMIT_S = 300.0
"""A history of a million objects is packed again in about a minute."""
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Names of tags; the largest projects have some tens of thousands."""
GRADER = "swe"
_SCRIPT = files("workers.graders.swe").joinpath("history.sh").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What is left."""

    commits: int
    """Reachable from the base commit, itself included."""
    tags: tuple[str, ...]
    """Tags that are not later, which stay: packages take their version from them."""
    submodules: tuple[str, ...] = ()
    """Paths of those that were treated."""
    outside: tuple[str, ...] = ()
    """Folders elsewhere that the repository took objects from, and other work trees of it; they may hold the future still, and whoever
    makes the image should remove them."""


async def hide_future(sandbox: Sandbox, repo: str, base_commit: str, *, timeout_s: float = HIDE_LIMIT_S) -> Hidden:
    """Treats the repository at `repo` (a path inside), before the agent has been in the sandbox.

    Raises:
        GraderError: there is no such repository or commit, its history has holes, it took too long, or something later is still there
            afterwards. The sandbox is not to be used then.
    """
    ends = time.monotonic() + timeout_s
    top = await _treat(sandbox, repo, base_commit, ends)
    submodules: list[str] = []
    outside = list(top.outside)
    waiting = [(path, commit) for commit, path in top.submodules]
    while waiting:
        path, commit = waiting.pop()
        treated = await _treat(sandbox, f"{repo}/{path}", commit, ends)
        submodules.append(path)
        outside += treated.outside
        waiting += [(f"{path}/{below}", its_commit) for its_commit, below in treated.submodules]
    return Hidden(commits=top.commits, tags=tuple(top.tags), submodules=tuple(sorted(submodules)), outside=tuple(dict.fromkeys(outside)))


@dataclass(slots=True)
class _Treated:
    """What the script says of one repository."""

    commits: int = 0
    tags: list[str] = field(default_factory=list)
    submodules: list[tuple[str, str]] = field(default_factory=list)
    """Commit and path."""
    outside: list[str] = field(default_factory=list)


async def _treat(sandbox: Sandbox, repo: str, commit: str, ends: float) -> _Treated:
    left_s = max(1.0, ends - time.monotonic())
    result = await sandbox.exec(["bash", "-c", _SCRIPT, "history", repo, commit], timeout_s=left_s, max_output_bytes=MAX_OUTPUT_BYTES)
    if result.timed_out or result.returncode != 0 or result.truncated_bytes:
        why = "took too long" if result.timed_out else result.stderr_text.strip()[-500:] or f"exit code {result.returncode}"
        raise GraderError(f"the history of {repo} after {commit} could not be hidden: {why}", grader=GRADER)
    treated = _Treated()
    for note in result.stdout.decode("utf-8", "surrogateescape").split("\0"):
        word, _, told = note.partition(" ")
        if word == "commits":
            treated.commits = int(told)
        elif word == "tag":
            treated.tags.append(told)
        elif word == "outside":
            treated.outside.append(told)
        elif word == "submodule":
            its_commit, _, path = told.partition(" ")
            treated.submodules.append((its_commit, path))
    return treated
