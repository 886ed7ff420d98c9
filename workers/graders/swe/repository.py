"""The repository of a task in a sandbox: made or found there, at a commit that holds exactly what is in the folder.

INIT and EVAL do the same to two fresh sandboxes, so that a patch taken out of the one fits the other:

1. The folder is written (plain kind), or is there (a data set's image).
2. What brings the bug is applied, where the data set keeps that apart.
3. Tests that the agent must not see are taken away; EVAL gets them back from `whole_tree`.
4. All that is there and not ignored is committed. That is the base commit, whatever commit the data set names.
"""

from __future__ import annotations

import io
import shlex
import tarfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from workers.graders.errors import GraderError
from workers.graders.swe.patch_apply import apply_patch
from workers.sandbox import Sandbox

GRADER = "swe"
GIT_S = 120.0
MAX_GIT_BYTES = 64 * 1024 * 1024
"""A list of the files of the largest repositories has a tenth of it."""
_IDENTITY = {
    "GIT_AUTHOR_NAME": "task",
    "GIT_AUTHOR_EMAIL": "task@localhost",
    "GIT_COMMITTER_NAME": "task",
    "GIT_COMMITTER_EMAIL": "task@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_NOSYSTEM": "1",
}
_PLAIN = (
    *("-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false"),
    *("-c", "core.quotePath=false", "-c", "gc.auto=0", "-c", "core.autocrlf=false"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositorySource:
    """Where a repository comes from."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Its files, by path, when it is made; empty = it is in the image."""
    executable: frozenset[str] = frozenset()
    folder: str = ""
    """Where it is in the image; of one that is made, the folder below the working directory."""
    base_commit: str = ""
    """The commit that the image must be at, or later; empty = any."""
    bug: bytes = b""
    """A patch that brings the bug."""
    hidden: tuple[str, ...] = ()
    """Paths in it that the agent must not see: files, or folders with all they hold."""
    also_removed: tuple[str, ...] = ()
    """Absolute paths outside of it, for INIT alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRepository:
    """A repository that is ready."""

    folder: str
    """Absolute, inside the sandbox."""
    base_commit: str
    whole_tree: str
    """The tree before hidden paths were taken away."""


async def prepare_repository(sandbox: Sandbox, source: RepositorySource) -> PreparedRepository:
    """Makes the repository of a fresh sandbox ready.

    Raises:
        GraderError: the image does not have what the task says, or git does not work in it.
    """
    if source.files:
        folder = f"{sandbox.workdir.rstrip('/')}/{source.folder or 'repo'}"
        await lay_files(sandbox, folder, source.files, source.executable)
    else:
        folder = source.folder or sandbox.workdir
        if source.base_commit:
            await git(sandbox, folder, "merge-base", "--is-ancestor", source.base_commit, "HEAD")
    if source.bug:
        applied = await apply_patch(sandbox, folder, source.bug)
        if not applied.applies:
            raise GraderError(f"the task's bug cannot be applied: {applied.reason}: {applied.detail}", grader=GRADER)
    if source.hidden:  # what is ignored is to be found again as well
        adding = 'for path; do if [ -e "./$path" ]; then git -c "safe.directory=*" add --force -- "./$path" || exit 1; fi; done'
        added = await sandbox.exec(["bash", "-c", adding, "add", *source.hidden], cwd=folder, env=_IDENTITY, timeout_s=GIT_S)
        if added.returncode != 0:
            raise GraderError(f"tests could not be noted: {added.stderr_text[-300:]}", grader=GRADER)
    base_commit, whole_tree = await commit_all(sandbox, folder, "The repository as it is given")
    if source.hidden:
        removed = await sandbox.exec(["rm", "-rf", "--", *(f"./{path}" for path in source.hidden)], cwd=folder, timeout_s=GIT_S)
        if removed.returncode != 0:
            raise GraderError(f"tests could not be taken away: {removed.stderr_text[-300:]}", grader=GRADER)
        base_commit, _ = await commit_all(sandbox, folder, "Without the tests that judge")
    return PreparedRepository(folder=folder, base_commit=base_commit, whole_tree=whole_tree)


async def commit_all(sandbox: Sandbox, folder: str, message: str) -> tuple[str, str]:
    """Commits what differs from the last commit, if anything does; the commit and its tree."""
    script = f'git() {{ command git {shlex.join(_PLAIN)} "$@"; }}\n{_COMMIT_ALL}'
    done = await sandbox.exec(["bash", "-c", script, "commit", message], cwd=folder, env=_IDENTITY, timeout_s=GIT_S)
    found = done.stdout_text.split()
    if done.returncode != 0 or len(found) != 2:
        raise GraderError(f"nothing can be committed in {folder}: {done.stderr_text.strip()[-500:]}", grader=GRADER)
    return found[0], found[1]


_COMMIT_ALL = """
git rev-parse --git-dir > /dev/null 2>&1 && [ -e .git ] || git init --quiet || exit 1
git add --all --ignore-errors || exit 1
git diff --cached --quiet HEAD 2> /dev/null || git commit --quiet --no-verify --allow-empty -m "$1" || exit 1
git rev-parse HEAD 'HEAD^{tree}'
"""


async def lay_files(sandbox: Sandbox, folder: str, files: Mapping[str, bytes], executable: Collection[str] = ()) -> None:
    """Writes files into a folder, in one go. They are of now: by older times git and Python's caches would take them for what was there."""
    archive, now = io.BytesIO(), time.time()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(content), 0o755 if path in executable else 0o644, now
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    await sandbox.upload(archive, folder)


async def git(sandbox: Sandbox, folder: str, *arguments: str) -> bytes:
    """What a git command prints.

    Raises:
        GraderError: it failed.
    """
    done = await sandbox.exec(["git", *_PLAIN, *arguments], cwd=folder, env=_IDENTITY, timeout_s=GIT_S, max_output_bytes=MAX_GIT_BYTES)
    if done.returncode != 0 or done.timed_out or done.truncated_bytes:
        why = f"exit code {done.returncode}" + (", out of time" if done.timed_out else "")
        raise GraderError(f"git {arguments[0]} failed in {folder} ({why}): {done.stderr_text.strip()[-500:]}", grader=GRADER)
    return done.stdout
