"""Makes a repository forget everything that is later than a commit, so that nobody can look the repair up in it.

Invariants
    - What is left in the repository's folder is what the commit can reach: no other object, packed or loose, no ref, reflog, stash,
      remote, replacement or alternate. It is built anew from the commit, with a list of what is kept, not cleaned of what is known.
    - This is proved before the call returns: the objects there are counted against those that the commit reaches.
    - The work tree is that of the commit and untouched otherwise: what is ignored or untracked stays, and so do changes of tracked files
      where HEAD is that commit already. The repository works: log, diff, blame, commit, `describe` by tags that are not later.
    - Submodules that are checked out are treated in the same way, at the commit that the base commit names.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.sandbox import Sandbox

HIDE_LIMIT_S = 300.0
"""A history of a million objects is packed again in about a minute."""


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
    """Folders elsewhere that the repository took objects from; they may hold the future still, and whoever makes the image should
    remove them."""


async def hide_future(sandbox: Sandbox, repo: str, base_commit: str, *, timeout_s: float = HIDE_LIMIT_S) -> Hidden:
    """Treats the repository at `repo` (a path inside), before the agent has been in the sandbox.

    Raises:
        GraderError: there is no such repository or commit, or something later is still there afterwards.
    """
    raise NotImplementedError
