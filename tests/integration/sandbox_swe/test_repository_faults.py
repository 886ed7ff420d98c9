"""Repositories that are not there or hold things up: what is the task's fault is raised, what is the agent's is an answer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import KINDS
from workers.graders import GraderError
from workers.graders.swe import apply_patch, extract_patch, hide_future
from workers.graders.swe.history import look_outside
from workers.sandbox import Sandbox, SandboxOwner

PATCH = b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+A\n"
MAKE = "git init -q repo && cd repo && echo a > f && git add -A && git -c user.name=A -c user.email=a@example.org commit -q -m base"


@pytest.fixture
async def sandbox(place: Path) -> AsyncIterator[Sandbox]:
    """Without walls: git is the same, and root may run it."""
    owner = SandboxOwner(job_id=f"run:{secrets.token_hex(4)}", attempt=1, boot_id="boot")
    async with KINDS["process"].open(place) as provider, await provider.start(KINDS["process"].spec, owner) as sandbox:
        yield sandbox


async def test_what_the_task_names_wrongly_is_raised_and_leaves_the_repository_alone(sandbox: Sandbox) -> None:
    """A task set with a wrong commit must be refused by its preflight, not score 0 for every repair."""
    repo, nothing = f"{sandbox.workdir}/repo", f"{sandbox.workdir}/nothing"
    head = (await sandbox.exec(f"{MAKE} && git rev-parse HEAD", timeout_s=30)).stdout_text.strip()

    with pytest.raises(GraderError, match="no repository"):
        await hide_future(sandbox, nothing, head)
    with pytest.raises(GraderError, match=r"commit 1{40} is not in"):
        await hide_future(sandbox, repo, "1" * 40)
    with pytest.raises(GraderError, match="could not be tried"):
        await apply_patch(sandbox, nothing, PATCH)

    assert (await sandbox.exec("git log --format=%H; git status --porcelain", cwd=repo, timeout_s=30)).stdout_text.strip() == head


async def test_objects_and_work_trees_elsewhere_are_named_before_and_after(sandbox: Sandbox) -> None:
    """They may hold the repair: preflight tells of them by a look that changes nothing, INIT while it hides what is later."""
    repo, mirror, other = (f"{sandbox.workdir}/{name}" for name in ("copy", "mirror", "other"))
    clone = "git clone -q --bare repo mirror && git clone -q --shared mirror copy"
    make = f"{MAKE} && cd .. && {clone} && cd copy && git worktree add -q ../other"
    head = (await sandbox.exec(f"({make}) 2> /dev/null && git -C copy rev-parse HEAD", timeout_s=30)).stdout_text.strip()

    looked = await look_outside(sandbox, repo, head)
    files = (await sandbox.exec("git status --porcelain --branch; git worktree list | wc -l", cwd=repo, timeout_s=30)).stdout_text
    hidden = await hide_future(sandbox, repo, head)

    assert sorted(looked) == sorted([f"{mirror}/objects", other])
    assert hidden.outside == looked
    assert files.splitlines()[1:] == ["2"]


async def test_an_agent_that_holds_up_git_gets_no_patch_and_holds_up_nobody_else(sandbox: Sandbox) -> None:
    """A pipe among git's objects is opened for reading and never answers."""
    repo = f"{sandbox.workdir}/repo"
    head = (await sandbox.exec(f"{MAKE} && git rev-parse HEAD && mkfifo .git/objects/info/alternates", timeout_s=30)).stdout_text.strip()

    patch = await extract_patch(sandbox, repo, head, timeout_s=2)

    assert (patch.diff, patch.trouble) == (b"", "timed_out")


async def test_a_folder_that_is_gone_is_a_lost_repository(sandbox: Sandbox) -> None:
    patch = await extract_patch(sandbox, f"{sandbox.workdir}/nothing", "1" * 40)

    assert patch.trouble == "repository_lost"
    assert "the folder is gone" in patch.detail
