"""`.venv` is there when its mark says so; completing it adds and mends, and never runs twice at once."""

import json
import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from ops.launcher.bootstrap_pip import ensure_pip, pip_environ
from ops.launcher.commands import extras_of_demo
from ops.launcher.environment import Environment, NotAnEnvironment
from ops.launcher.package_index import IndexUnusable

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    root = tmp_path / "a project"
    root.mkdir()
    (root / "pyproject.toml").write_text('[project]\nname = "rollstream"\n')
    return Environment(root)


def set_mark(environment: Environment, **changes: object) -> None:
    environment.python.parent.mkdir(parents=True, exist_ok=True)
    environment.python.touch()
    mark = {"hash": environment.fingerprint(), "extras": ["ops", "workers"]} | changes
    (environment.folder / ".ready").write_text(json.dumps(mark))


def add_package(environment: Environment, name: str, *, recorded_size: int = 5, record: bool = True) -> Path:
    site = environment.folder / "lib/python3.11/site-packages"
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_bytes(b"x = 1")
    (info / "METADATA").write_text(f"Name: {name}\n")
    if record:
        (info / "RECORD").write_text(f"{name}.py,sha256=abc,{recorded_size}\n{info.name}/RECORD,,\n")
    return info


def test_an_environment_is_ready_for_the_extras_of_its_mark_only(environment: Environment) -> None:
    assert not environment.is_ready({"ops"})

    set_mark(environment)

    assert environment.is_ready({"ops"})
    assert environment.is_ready({"ops", "workers"})
    assert not environment.is_ready({"ops", "dev"})


@pytest.mark.parametrize("mark", ["", "{", "[]", '{"hash": "other", "extras": ["ops"]}', '{"extras": ["ops"]}'])
def test_a_mark_that_is_torn_or_of_something_else_counts_as_none(environment: Environment, mark: str) -> None:
    set_mark(environment)
    (environment.folder / ".ready").write_text(mark)

    assert not environment.is_ready({"ops"})


def test_another_pyproject_or_another_place_needs_completing(environment: Environment, tmp_path: Path) -> None:
    set_mark(environment)
    (environment.root / "pyproject.toml").write_text('[project]\nname = "rollstream"\nversion = "2"\n')
    assert not environment.is_ready({"ops"})

    set_mark(environment)
    moved = environment.root.rename(tmp_path / "moved")
    assert not Environment(moved).is_ready({"ops"})


def test_only_one_launch_at_a_time_holds_the_lock(environment: Environment) -> None:
    program = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        from pathlib import Path
        from ops.launcher.environment import Environment
        with Environment(Path(sys.argv[2])).lock():
            print("has it", flush=True)
        """
    )
    command = [sys.executable, "-I", "-c", program, str(PROJECT), str(environment.root)]

    with environment.lock():
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        waits = other.stdout.readline()
    has_it = other.stdout.readline()
    other.communicate()

    assert "another launch" in waits
    assert has_it == "has it\n"
    assert other.returncode == 0


def test_a_child_that_inherited_the_lock_keeps_it_when_the_launcher_is_gone(environment: Environment) -> None:
    """A launcher that is killed leaves pip running; the next launch must wait for that pip, not install beside it."""
    read, write = os.pipe()
    with environment.lock() as held:
        # the heir ends when the other end of its stdin closes
        heir = subprocess.Popen([sys.executable, "-I", "-c", "import sys; sys.stdin.read()"], stdin=read, pass_fds=[held])
    os.close(read)
    asking = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-I", "-c", asking, str(environment.folder / ".lock")]

    while_it_lives = subprocess.run(command, capture_output=True, text=True, check=False)
    os.close(write)
    heir.wait()
    afterwards = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "BlockingIOError" in while_it_lives.stderr
    assert afterwards.returncode == 0


def test_a_package_that_was_installed_in_part_is_forgotten_and_whole_ones_stay(environment: Environment) -> None:
    whole = add_package(environment, "whole")
    without_list = add_package(environment, "unlisted", record=False)
    cut = add_package(environment, "cut", recorded_size=500)
    gone = add_package(environment, "gone")
    (gone.parent / "gone.py").unlink()

    forgotten = environment.forget_broken_packages()

    assert forgotten == [cut.name, gone.name, without_list.name]
    assert [path for path in (whole, without_list, cut, gone) if path.exists()] == [whole]
    assert environment.count_packages() == 1


def test_a_folder_that_is_no_environment_is_left_alone(environment: Environment) -> None:
    (environment.folder / "thesis").mkdir(parents=True)

    with pytest.raises(NotAnEnvironment, match="thesis"):
        environment.create()

    assert (environment.folder / "thesis").is_dir()


def test_an_environment_that_runs_is_kept_and_one_that_does_not_is_made_anew(environment: Environment) -> None:
    environment.create()
    mine = environment.folder / "mine.txt"
    mine.touch()

    environment.create()
    assert mine.exists()

    environment.python.unlink()
    environment.python.symlink_to("/nowhere/python")
    environment.create()
    assert not mine.exists()
    asked = subprocess.run([environment.python, "-I", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(asked.stdout.strip()).resolve() == environment.folder.resolve()


PIP_DOUBLE = '''
"""A pip that can do one thing: put itself, out of its wheel, into the environment whose Python runs it."""
import sys, sysconfig, zipfile
if sys.argv[1] == "--version":
    print("pip 99.0 from here")
else:
    assert sys.argv[1:5] == ["install", "--quiet", "--no-index", "--no-deps"], sys.argv
    with zipfile.ZipFile(sys.argv[5]) as wheel:
        wheel.extractall(sysconfig.get_path("purelib"))
'''


def a_python_without_pip(folder: Path) -> Path:
    """An environment whose Python has neither pip nor ensurepip, as Debian's without python3-venv."""
    venv.create(folder, with_pip=False, symlinks=True)
    [site] = folder.glob("lib/python3.*/site-packages")
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
    return folder / "bin" / "python"


def test_pip_comes_as_its_own_wheel_where_python_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = a_python_without_pip(tmp_path / "env")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "pip-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pip/__init__.py", "")
        wheel.writestr("pip/__main__.py", PIP_DOUBLE)

    ensure_pip(python, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull})

    asked = subprocess.run([python, "-I", "-m", "pip", "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout == "pip 99.0 from here\n"
    assert "pip-99.0-py3-none-any.whl" in capsys.readouterr().out


def test_without_pip_and_without_any_source_it_says_what_was_asked(tmp_path: Path) -> None:
    python = a_python_without_pip(tmp_path / "env")

    with pytest.raises(IndexUnusable, match="no package source has pip"):
        ensure_pip(python, {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull})


def test_settings_that_would_lead_pip_elsewhere_do_not_reach_it() -> None:
    mine = {"PATH": "/bin", "PYTHONPATH": "/x", "PIP_TARGET": "/y", "PIP_USER": "1", "PIP_INDEX_URL": "https://mirror/simple"}

    environ = pip_environ(mine)

    assert environ["PIP_INDEX_URL"] == "https://mirror/simple"
    assert environ["PIP_USER"] == "0"
    assert not {"PYTHONPATH", "PIP_TARGET"} & environ.keys()


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        ([], set()),
        (["down"], set()),
        (["--task"], set()),
        (["--task", "math", "--keep"], set()),
        (["--groups", "2", "--task", "reasoning_gym"], {"reasoning-gym"}),
        (["--task=reasoning_gym", "--no-such-thing"], {"reasoning-gym"}),
    ],
)
def test_a_demo_brings_what_its_task_alone_wants(arguments: list[str], extras: set[str]) -> None:
    assert extras_of_demo(arguments) == extras
