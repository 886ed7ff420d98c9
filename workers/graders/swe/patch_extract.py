"""Takes what was done to a repository out of a sandbox, as one patch against a commit.

The agent owns everything in there, `.git` included. So nothing of that folder is asked but its objects and its list of ignored files: a
git folder and an index of our own, made for the moment below `/tmp` and thrown away, stand beside the work tree. The repository's
configuration, hooks, locks, replacements and state of the index are never read, and nothing in it is changed. What the agent puts
into objects or files can only make its own patch worse.

Invariants
    - All that differs from the base commit is in the patch or is named in `left_out`; nothing is lost in silence. Ignored files and
      what lies in ignored folders are no difference.
    - Nested repositories, submodules or not, are folders like others: their changes are in the same patch, under their own paths.
    - Links that lead out of the repository are left out, so that one of an environment (`venv/bin/python`) cannot spoil a repair:
      `apply_patch` refuses a patch that has one.
    - Time and bytes are bounded. What a command prints is data.
    - A repository that cannot be read any more is an answer (`trouble`), not an error: the agent did it. A sandbox that fails raises.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.resources import files

from workers.graders.swe.patch_apply import leads_out, shown
from workers.graders.swe.patch_file import BadPatch, read_patch, write_patch
from workers.sandbox import Sandbox

MAX_PATCH_BYTES = 8 * 1024 * 1024
"""Repairs have kilobytes; what is larger is a build or a data set that nobody ignored. A single file above it is left out."""
EXTRACT_LIMIT_S = 120.0
_SCRIPT = files("workers.graders.swe").joinpath("patch_extract.sh").read_text()
_TOO_LARGE = 4
_LEFT = b"left "
_MOST_LEFT, _LONGEST_NOTE = 200, 1_000
"""Of what is left out, as many are named, with so many bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What was done, as `git diff --binary --full-index --no-renames` writes it."""

    diff: bytes
    """Empty when nothing was done, or when there is trouble. Bytes: files are in any encoding, mixed too."""
    base_commit: str
    paths: tuple[str, ...] = ()
    """What it changes, relative to the repository; bytes outside of UTF-8 as surrogates."""
    left_out: tuple[str, ...] = ()
    """Changes that it does not have, each as `path: reason`."""
    trouble: str = ""
    """Why there is none: `repository_lost` (the base commit or the files cannot be read any more), `too_large`, `timed_out`."""
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
    result = await sandbox.exec(
        ["bash", "-c", _SCRIPT, "patch_extract", repo, base_commit, str(max_bytes)],
        timeout_s=timeout_s,
        max_output_bytes=max_bytes + 64 * 1024,
    )
    notes = [note.removeprefix(_LEFT) for note in result.stderr.split(b"\0") if note.startswith(_LEFT)]
    left_out = tuple(shown(note[:_LONGEST_NOTE]) for note in notes[:_MOST_LEFT])
    if result.timed_out:
        return Patch(diff=b"", base_commit=base_commit, left_out=left_out, trouble="timed_out", detail=f"more than {timeout_s:g} s")
    if result.returncode == _TOO_LARGE or result.truncated_bytes:
        return Patch(
            diff=b"", base_commit=base_commit, left_out=left_out, trouble="too_large", detail=f"more than {max_bytes} bytes of changes"
        )
    if result.returncode != 0:
        why = "; ".join(left_out) or result.stderr_text.strip()[-500:] or f"exit code {result.returncode}"
        return Patch(diff=b"", base_commit=base_commit, left_out=left_out, trouble="repository_lost", detail=why)
    return await asyncio.to_thread(_checked, result.stdout, base_commit, left_out)


def _checked(diff: bytes, base_commit: str, left_out: tuple[str, ...]) -> Patch:
    """Without the links that lead out."""
    try:
        sections = read_patch(diff)
    except BadPatch as bad:  # git was replaced by something that prints what it likes
        return Patch(diff=b"", base_commit=base_commit, left_out=left_out, trouble="repository_lost", detail=f"no patch came: {bad}")
    kept = []
    for section in sections:
        target = section.link_target()
        if target is not None and leads_out(section.path, target):
            left_out += (f"{shown(section.path)}: a link that leads out of the repository",)
        else:
            kept.append(section)
    paths = tuple(dict.fromkeys(shown(path) for section in kept for path in section.paths))
    return Patch(diff=diff if len(kept) == len(sections) else write_patch(kept), base_commit=base_commit, paths=paths, left_out=left_out)
