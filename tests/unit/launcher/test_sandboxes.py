"""Tests of sandboxes run as an unprivileged user, also where root's own folders keep that user out of the project."""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from ops.launcher import as_test_user
from ops.launcher.as_test_user import covers_for, environ_for, may_enter
from ops.launcher.environment import Environment
from ops.launcher.logged import CommandFailed, Steps
from ops.launcher.root_fs import root_fs_note
from ops.launcher.sandboxes import Ground, find_ground

STRANGER = pwd.struct_passwd(("stranger", "x", 4_000_000, 4_000_000, "", "/home/stranger", "/bin/sh"))
needs_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that everybody may enter, all the way from the root."""
    for folder in (tmp_path, *tmp_path.parents):
        if not may_enter(STRANGER, folder) and folder.stat().st_uid == os.geteuid():
            folder.chmod(0o755)
    return tmp_path


def a_folder(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def test_only_the_topmost_closed_folder_is_covered_and_what_is_needed_is_put_back(open_path: Path) -> None:
    closed = a_folder(open_path / "closed", 0o700)
    project = a_folder(a_folder(closed / "inner", 0o700) / "project", 0o755)
    python = a_folder(closed / "python", 0o755)
    free = a_folder(open_path / "free", 0o755)

    covers = covers_for(STRANGER, [project, python, project / "not there", free])

    assert covers == {closed.resolve(): [project.resolve(), python.resolve()]}


def test_of_a_needed_folder_that_is_closed_itself_all_is_put_back(open_path: Path) -> None:
    closed = a_folder(open_path / "closed", 0o700)
    (closed / "file").touch()
    inner = a_folder(closed / "inner", 0o755)

    assert covers_for(STRANGER, [closed, inner]) == {closed.resolve(): [(closed / "file").resolve(), inner.resolve()]}


def test_of_the_environment_only_what_names_no_secret_is_kept() -> None:
    kept = environ_for(STRANGER, {"PATH": "/bin", "LC_ALL": "C", "ROLLSTREAM_TEST_IMAGE": "/i", "A_TOKEN": "secret", "HOME": "/root"})

    assert kept == {
        "PATH": "/bin", "LC_ALL": "C", "ROLLSTREAM_TEST_IMAGE": "/i",
        "HOME": "/home/stranger", "USER": "stranger", "LOGNAME": "stranger", "SHELL": "/bin/bash",
    }  # fmt: skip


@needs_root
def test_a_command_of_root_runs_as_the_user_without_rights_and_meets_only_what_it_needs(open_path: Path) -> None:
    """The interpreter lies below root's closed home on many machines: it must start all the same, and the rest of that home stay hidden."""
    closed = a_folder(open_path / "closed", 0o700)
    needed = a_folder(closed / "needed", 0o755)
    (needed / "file").write_text("for everybody")
    (closed / "secret").write_text("for root")
    program = (
        "import json, os, sys; status = dict(line.split(':', 1) for line in open('/proc/self/status')); "
        "print(json.dumps({'uids': os.getresuid(), 'groups': os.getgroups(), 'rights': status['CapEff'].strip(), "
        "'seen': os.listdir(sys.argv[1]), 'read': open(sys.argv[1] + '/needed/file').read(), 'home': os.environ['HOME']}))"
    )
    as_nobody = [sys.executable, "-I", as_test_user.__file__, "--user=nobody", f"--path={needed}", "--"]
    command = [*as_nobody, sys.executable, "-c", program, str(closed)]

    done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)

    nobody = pwd.getpwnam("nobody")
    assert json.loads(done.stdout) == {
        "uids": [nobody.pw_uid] * 3, "groups": [], "rights": "0000000000000000",
        "seen": ["needed"], "read": "for everybody", "home": nobody.pw_dir,
    }  # fmt: skip
    assert sorted(os.listdir(closed)) == ["needed", "secret"]  # outside of the command's own mounts nothing has changed


@needs_root
def test_the_exit_code_is_the_command_s_own() -> None:
    command = [sys.executable, "-I", as_test_user.__file__, "--user=nobody", "--", "sh", "-c", "exit 7"]

    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 7


def test_an_ordinary_user_runs_the_command_as_it_stands_and_root_through_the_user(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    plain = Ground(environment=environment, user=None, legs=())
    as_user = Ground(environment=environment, user=STRANGER, legs=())

    assert plain.command(["python", "-m", "pytest"]) == ["python", "-m", "pytest"]
    assert as_user.command(["python", "-m", "pytest"], needed=[Path("/reports")])[2:] == [
        as_test_user.__file__, "--user=stranger", "--path=/reports", "--", "python", "-m", "pytest",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are only bare processes")
def test_what_is_not_here_is_said_with_the_command_that_brings_it(tmp_path: Path) -> None:
    ground = find_ground(Environment(tmp_path), {"PATH": str(tmp_path)})

    missing = {leg.name: leg for leg in ground.legs if leg.path is None}
    assert {"bubblewrap", "apptainer", "image", "squashfuse"} <= missing.keys()
    assert all(leg.why_missing and leg.how_to_enable.startswith("./ops/launch") for leg in missing.values())


def test_an_image_counts_only_when_it_is_complete_and_of_this_recipe(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3").touch()
    assert root_fs_note(root) == {}

    note = {"recipe": 1, "suite": "bookworm", "python": "3.11", "owner": 1}
    (tmp_path / "rootfs.json").write_text(json.dumps(note))
    assert root_fs_note(root) == note

    (tmp_path / "rootfs.json").write_text(json.dumps(note | {"recipe": 0}))
    assert root_fs_note(root) == {}


def test_a_step_that_fails_shows_the_end_of_what_it_said_and_one_that_is_not_there_its_name(tmp_path: Path) -> None:
    steps = Steps(log=tmp_path / "log")
    steps.run("echo", "the first")

    with pytest.raises(CommandFailed, match=r"ended with code 3(?s:.*)the reason"):
        steps.run("sh", "-c", "echo the reason; exit 3")
    with pytest.raises(CommandFailed, match="there is no not-a-program here"):
        steps.run("not-a-program")

    assert (tmp_path / "log").read_text().splitlines() == ["the first", "the reason"]
