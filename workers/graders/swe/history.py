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
from collections.abc import AsyncIterator, Iterable
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
    treated = [each async for each in _each(sandbox, repo, base_commit, time.monotonic() + timeout_s)]
    top = treated[0][1]
    submodules = tuple(sorted(path for path, _ in treated[1:]))
    return Hidden(commits=top.commits, tags=tuple(top.tags), submodules=submodules, outside=_outside(treated))


async def look_outside(sandbox: Sandbox, repo: str, commit: str, *, timeout_s: float = HIDE_LIMIT_S) -> tuple[str, ...]:
    """What `Hidden.outside` of a repository would be, which is left as it is.

    Raises:
        GraderError: there is no such repository or commit.
    """
    return _outside([each async for each in _each(sandbox, repo, commit, time.monotonic() + timeout_s, look=True)])


@dataclass(slots=True)
class _Treated:
    """What the script says of one repository."""

    commits: int = 0
    tags: list[str] = field(default_factory=list)
    submodules: list[tuple[str, str]] = field(default_factory=list)
    """Commit and path."""
    outside: list[str] = field(default_factory=list)


async def _each(sandbox: Sandbox, repo: str, commit: str, ends: float, *, look: bool = False) -> AsyncIterator[tuple[str, _Treated]]:
    """The repository, and the submodules in it by their paths."""
    waiting = [("", commit)]
    while waiting:
        path, its_commit = waiting.pop()
        treated = await _treat(sandbox, f"{repo}/{path}" if path else repo, its_commit, ends, look=look)
        yield path, treated
        waiting += [(f"{path}/{below}" if path else below, commit_below) for commit_below, below in treated.submodules]


def _outside(treated: Iterable[tuple[str, _Treated]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for _, each in treated for folder in each.outside))


async def _treat(sandbox: Sandbox, repo: str, commit: str, ends: float, *, look: bool) -> _Treated:
    left_s = max(1.0, ends - time.monotonic())
    command = ["bash", "-c", _SCRIPT, "history", repo, commit, "look" if look else ""]
    result = await sandbox.exec(command, timeout_s=left_s, max_output_bytes=MAX_OUTPUT_BYTES)
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
