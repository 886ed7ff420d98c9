"""Takes what was done to a repository out of a sandbox, as one patch against a commit.

The agent owns everything in there, `.git` included. So nothing of that folder is asked but its objects: a git folder and an index of our
own, made for the moment below `/tmp` and thrown away, stand beside the work tree. The repository's configuration, hooks, attributes,
locks, replacements and state of the index are never read, and nothing in it is changed. What the agent puts into objects or files can
only make its own patch worse.

Invariants
    - All that differs from the base commit is in the patch or is named in `left_out`; nothing is lost in silence. Ignored files and
      what lies in ignored folders are no difference.
    - Nested repositories, submodules or not, are folders like others: their changes are in the same patch, under their own paths.
    - Time and bytes are bounded. What a command prints is data.
    - A repository that cannot be read any more is an answer (`trouble`), not an error: the agent did it. A sandbox that fails raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.sandbox import Sandbox

MAX_PATCH_BYTES = 8 * 1024 * 1024
"""Repairs have kilobytes; what is larger is a build or a data set that nobody ignored."""
EXTRACT_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What was done, as `git diff --binary --full-index --no-renames` writes it."""

    diff: bytes
    """Empty when nothing was done, or when there is trouble. Bytes: files are in any encoding, mixed too."""
    base_commit: str
    paths: tuple[str, ...] = ()
    """What it changes, relative to the repository; bytes outside of UTF-8 as surrogates."""
    left_out: tuple[str, ...] = ()
    """Paths of changes that it does not have, each with the reason: `path: reason`."""
    trouble: str = ""
    """Why there is none: `repository_lost` (the base commit cannot be read any more), `too_large`, `timed_out`."""
    detail: str = ""


async def extract_patch(
    sandbox: Sandbox,
    repo: str,
    base_commit: str,
    *,
    timeout_s: float = EXTRACT_LIMIT_S,
    max_bytes: int = MAX_PATCH_BYTES,
) -> Patch:
    """The work tree below `repo` (a path inside) against `base_commit` (full hash)."""
    raise NotImplementedError
