"""When control groups are left alone, what bounds a sandbox then, and how many cores are ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.sandbox.limits.cgroups import find_cgroups
from workers.sandbox.limits.enforced import enforced_by
from workers.sandbox.spec import Limits

LIMITS = Limits(sandbox_memory_bytes=48 * 1024 * 1024, processes=20)


@pytest.fixture
def unified(tmp_path: Path) -> tuple[Path, Path]:
    """A tree as version 2 shows it: /proc and the mount. What it does not show is the kernel's own doing when a controller is enabled."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / "self").symlink_to(str(os.getpid()))
    (proc / "self" / "cgroup").write_text("0::/user/mine\n")
    group = mount / "user" / "mine"
    group.mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.subtree_control").write_text("\n")
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return proc, mount


def test_a_group_that_others_share_is_left_as_it_is_and_that_is_said(unified: tuple[Path, Path]) -> None:
    proc, mount = unified
    group = mount / "user" / "mine"
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")

    found = find_cgroups(proc=proc, mounts=mount)

    assert found.bases == {}
    assert "others run in it" in found.missing["memory"]
    assert (group / "cgroup.subtree_control").read_text() == "\n"


def test_a_group_that_is_not_delegated_is_no_group_of_ours(unified: tuple[Path, Path]) -> None:
    proc, mount = unified
    (mount / "user" / "mine" / "cgroup.subtree_control").unlink()

    found = find_cgroups(proc=proc, mounts=mount)

    assert found.bases == {}
    assert "delegated" in found.missing["pids"]


def test_without_groups_nothing_is_made_and_the_watchdog_is_what_there_is(tmp_path: Path) -> None:
    found = find_cgroups(proc=tmp_path, mounts=tmp_path)

    assert found.make("sandbox", LIMITS) is None
    enforced = enforced_by(None, pid_max=False, watched=True, network="none")
    assert (enforced["memory"], enforced["processes"], enforced["cpu"]) == ("watchdog", "watchdog", "watchdog")


def test_what_nothing_enforces_is_said_to_be_so() -> None:
    enforced = enforced_by(None, pid_max=False, watched=False, network="host")

    assert (enforced["memory"], enforced["disk"], enforced["network"]) == ("nothing", "nothing", "host")
