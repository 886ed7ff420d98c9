"""`ops/launch` finds a Python with nothing but bash on the PATH, or says how to get one."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The launcher alone, in a folder with a space in its name and without an environment."""
    root = tmp_path / "a clone"
    (root / "ops").mkdir(parents=True)
    shutil.copy(PROJECT / "ops/launch", root / "ops/launch")
    shutil.copy(PROJECT / "ops/__init__.py", root / "ops/__init__.py")
    shutil.copytree(PROJECT / "ops/launcher", root / "ops/launcher", ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder for PATH that holds bash and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    bash = shutil.which("bash")
    assert bash is not None
    (folder / "bash").symlink_to(bash)
    return folder


def add_python(folder: Path, name: str, program: str | None = None) -> None:
    (folder / name).write_text(f'#!/bin/sh\n{program or f"exec {shlex.quote(sys.executable)}"} "$@"\n')
    (folder / name).chmod(0o755)


def launch(script: Path, *arguments: str, path: Path, cwd: Path = Path("/"), **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path), "HOME": "/nonexistent", **environ}
    return subprocess.run([script, *arguments], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_without_python_it_says_how_to_get_one(clone: Path, path: Path) -> None:
    done = launch(clone / "ops/launch", path=path)

    assert done.returncode == 1
    assert done.stdout == ""
    assert "found none on the PATH" in done.stderr
    assert "ROLLSTREAM_PYTHON=" in done.stderr


def test_without_arguments_it_lists_the_commands_that_exist(clone: Path, path: Path) -> None:
    add_python(path, "python3")

    done = launch(clone / "ops/launch", path=path)

    assert done.returncode == 0
    listed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  ./ops/launch ")]
    assert listed == ["demo", "test", "setup", "node", "llm", "bundle", "down"]


def test_a_python_that_is_too_old_or_broken_is_passed_over(clone: Path, path: Path) -> None:
    add_python(path, "python3", "exit 1; :")
    add_python(path, "python3.13", "exit 127; :")
    add_python(path, "python3.12")

    assert launch(clone / "ops/launch", path=path).returncode == 0


def test_a_python_that_a_person_names_is_used_or_refused_but_never_replaced(clone: Path, path: Path, tmp_path: Path) -> None:
    add_python(path, "python3")
    add_python(tmp_path, "mine", "exit 1; :")
    mine = str(tmp_path / "mine")

    refused = launch(clone / "ops/launch", path=path, ROLLSTREAM_PYTHON=mine)

    assert refused.returncode == 1
    assert mine in refused.stderr
    (path / "python3").unlink()
    assert launch(clone / "ops/launch", path=path, ROLLSTREAM_PYTHON=sys.executable).returncode == 0


def test_it_works_through_a_link_and_from_any_folder(clone: Path, path: Path, tmp_path: Path) -> None:
    add_python(path, "python3")
    readlink = shutil.which("readlink", path="/usr/bin:/bin")
    assert readlink is not None
    (path / "readlink").symlink_to(readlink)
    (tmp_path / "rollstream").symlink_to("a clone/ops/launch")

    assert launch(tmp_path / "rollstream", path=path, cwd=tmp_path).returncode == 0
    assert launch(Path("launch"), path=Path(f"{path}:{clone / 'ops'}"), cwd=clone / "ops").returncode == 0


def test_modules_of_another_project_on_the_path_of_python_do_not_come_in(clone: Path, path: Path, tmp_path: Path) -> None:
    add_python(path, "python3")
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/__init__.py").write_text("raise RuntimeError('not ours')\n")

    done = launch(clone / "ops/launch", path=path, cwd=tmp_path, PYTHONPATH=str(tmp_path))

    assert done.returncode == 0, done.stderr


def test_an_unknown_command_lists_those_there_are(clone: Path, path: Path) -> None:
    add_python(path, "python3")

    done = launch(clone / "ops/launch", "fly", path=path)

    assert done.returncode == 2
    assert "'fly'" in done.stderr
    assert "./ops/launch demo" in done.stderr


def test_down_without_an_environment_has_nothing_to_stop(clone: Path, path: Path) -> None:
    add_python(path, "python3")

    done = launch(clone / "ops/launch", "down", path=path)

    assert done.returncode == 0
    assert "Nothing to stop" in done.stdout
    assert not (clone / ".venv").exists()


def test_a_folder_that_cannot_be_made_is_said_in_words(clone: Path, path: Path) -> None:
    add_python(path, "python3")
    (clone / ".venv").write_text("a file of somebody's")

    done = launch(clone / "ops/launch", "setup", path=path)

    assert done.returncode == 1
    assert f"{clone / '.venv'}: File exists" in done.stderr
    assert "Traceback" not in done.stderr
