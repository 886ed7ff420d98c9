"""Applies a patch of unknown origin to a repository in a fresh sandbox.

Invariants
    - All or nothing: a patch that does not apply leaves every file as it was. The index, the refs and the objects of the repository are
      left alone in any case; only the work tree changes.
    - Nothing is written outside of the repository, into a `.git`, or through a link; no link that leads out is made. This is judged
      here, on the patch as we read it, and what is applied is written anew from that reading: there is no second opinion on what a
      line means.
    - A changed file has one kind of line ends if it had one before.
    - An answer, never an error, whatever the patch is. A sandbox that fails raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.sandbox import Sandbox

APPLY_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a patch."""

    applies: bool
    how: str = ""
    """`apply`, `3way` or `patch`: the first of them that took it whole."""
    dropped: tuple[str, ...] = ()
    """Paths of binary files whose data the patch does not have."""
    already: tuple[str, ...] = ()
    """Paths where the files already were as the patch wants them."""
    paths: tuple[str, ...] = ()
    """What it changes."""
    reason: str = ""
    """Why it does not apply: `empty_patch`, `malformed`, `outside` (of the repository, or in a `.git`), `link` (one that leads out, or a
    file written through one), `conflict`, `too_large`, `timed_out`. Empty when it does."""
    detail: str = ""
    """For a person: the path or line at fault, what each way of applying said."""


async def apply_patch(sandbox: Sandbox, repo: str, patch: bytes, *, timeout_s: float = APPLY_LIMIT_S) -> Applied:
    """Applies `patch` to the work tree below `repo`, a path inside."""
    raise NotImplementedError
