"""Which files of a patch must not count when tests run."""

from __future__ import annotations

import pytest

from workers.graders.swe.steering import hides_test, is_compiled, is_test, steering_part_of, steers
from workers.graders.swe.steering import test_folder as folder_of

BASE = {"": {"calc", "types", "tests", "setup"}, "src": {"calc"}}


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "pkg/sub/conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        "tox.ini",
        "sitecustomize.py",
        "src/usercustomize.py",
        "sitecustomize/__init__.py",
        "sitecustomize.cpython-311-x86_64-linux-gnu.so",
        "evil.pth",
        "calc.egg-info/entry_points.txt",
        "vendor/x-1.0.dist-info/entry_points.txt",
        ".venv/lib/python3.11/site-packages/_pytest/runner.py",
        "pytest.py",
        "_pytest/__init__.py",
        "unittest/__init__.py",
        "src/json.py",
        "difflib.pyc",
        "pluggy/_callers.py",
        "bin/run_the_tests",
    ],
)
def test_what_steers_python_runners(path: str) -> None:
    assert steers(path, "pytest", command="./bin/run_the_tests tests", known_modules=BASE)


@pytest.mark.parametrize(
    "path",
    [
        "calc.py",
        "src/calc/json.py",  # hides nothing: it is inside a package
        "types.py",  # the base commit has a module of that name
        "types/new.py",
        "setup.py",
        "docs/pytest.md",
        "calc/testing.py",
        "README.md",
        "json.txt",
    ],
)
def test_what_is_source(path: str) -> None:
    assert not steers(path, "pytest", command="python -m pytest tests", known_modules=BASE)


def test_a_repository_that_is_the_runner_keeps_its_own_modules() -> None:
    assert steers("src/_pytest/runner.py", "pytest", known_modules={"src": {"calc"}})
    assert not steers("src/_pytest/runner.py", "pytest", known_modules={"src": {"_pytest"}})


def test_folders_that_the_task_puts_on_the_path_are_looked_at_too() -> None:
    assert not steers("lib/python/json.py", "unittest", known_modules={})
    assert steers("lib/python/json.py", "unittest", known_modules={}, import_roots=["lib/python"])


@pytest.mark.parametrize(
    ("framework", "path", "expected"),
    [
        ("jest", "jest.config.js", True),
        ("jest", "packages/a/.babelrc.json", True),
        ("jest", "src/__mocks__/fs.js", True),
        ("jest", "node_modules/jest/bin/jest.js", True),
        ("jest", "src/index.js", False),
        ("jest", "conftest.py", False),
        ("go", "go.work", True),
        ("go", "main.go", False),
        ("cargo", ".cargo/config.toml", True),
        ("cargo", "build.rs", True),
        ("cargo", "src/lib.rs", False),
    ],
)
def test_what_steers_other_runners(framework: str, path: str, expected: bool) -> None:
    assert steers(path, framework) is expected


@pytest.mark.parametrize(
    ("framework", "path", "before", "after", "expected"),
    [
        ("pytest", "pyproject.toml", b"[project]\nname='a'\n", b"[project]\nname='a'\ndependencies=['x']\n", False),
        ("pytest", "pyproject.toml", b"[project]\nname='a'\n", b"[tool.pytest.ini_options]\naddopts='-p x'\n", True),
        ("pytest", "pyproject.toml", b"", b"[project.entry-points.pytest11]\nx='x'\n", True),
        ("pytest", "pyproject.toml", b"[project]\n", b"not toml [", True),
        ("pytest", "setup.cfg", b"[metadata]\nname=a\n", b"[metadata]\nname=a\nversion=2\n", False),
        ("pytest", "setup.cfg", b"[metadata]\nname=a\n", b"[metadata]\nname=a\n[tool:pytest]\naddopts=-p x\n", True),
        ("pytest", "setup.cfg", b"[metadata]\nname=a\n", b"[metadata]\nname=a\n[tool:pytest] # ]\naddopts=-p x\n", True),
        ("pytest", "setup.cfg", b"[metadata]\nname=a\n", "[metadata]\nname=a\u2028[tool:pytest]\u2028addopts=-p x\n".encode(), True),
        ("pytest", "setup.cfg", b"[tool:pytest]\naddopts=-q\n", b"[tool:pytest]\n# quiet\naddopts=-q\n\n[metadata]\n", False),
        ("jest", "package.json", b'{"version": "1"}', b'{"version": "2"}', False),
        ("jest", "package.json", b'{"scripts": {"test": "jest"}}', b'{"scripts": {"test": "true"}}', True),
        ("cargo", "Cargo.toml", b"[dependencies]\n", b"[dependencies]\nx='1'\n", False),
        ("cargo", "Cargo.toml", b"[lib]\n", b"[lib]\ntest=false\n", True),
    ],
)
def test_of_files_that_say_several_things_the_part_of_the_runner(
    framework: str, path: str, before: bytes, after: bytes, expected: bool
) -> None:
    part = steering_part_of(path, framework)

    assert part is not None
    assert (part(before) != part(after)) is expected


def test_tests_are_the_tasks_files_and_all_that_lies_in_their_folder() -> None:
    tests = {"tests/unit/test_a.py", "pkg/test_b.py"}

    for path in ("tests/unit/test_a.py", "tests/helpers.py", "tests/data/x.json", "pkg/test_b.py"):
        assert is_test(path, tests, "pytest"), path
    for path in ("pkg/b.py", "testing/x.py", "tests.py", "src/tests/x.py"):
        assert not is_test(path, tests, "pytest"), path


def test_a_link_in_place_of_a_folder_of_tests_is_one_of_them() -> None:
    assert is_test("tests", {"tests/test_a.py"}, "pytest")
    assert is_test("pkg", {"pkg/test_b.py"}, "pytest")


@pytest.mark.parametrize(
    "path", ["test_a/__init__.py", "test_a.cpython-311-x86_64-linux-gnu.so", "test_a.pyc", "pkg/test_b/x.py", "tests.py", "tests.abi3.so"]
)
def test_what_python_would_find_in_place_of_a_test(path: str) -> None:
    assert hides_test(path, {"test_a.py", "pkg/test_b.py", "tests/test_c.py"})


@pytest.mark.parametrize("path", ["test_ab.py", "a.py", "pkg/b.py", "test_a.md", "tests.md", "other/test_a.py"])
def test_what_stands_in_no_tests_way(path: str) -> None:
    assert not hides_test(path, {"test_a.py", "pkg/test_b.py", "tests/test_c.py"})


def test_bytecode_is_told_from_source() -> None:
    assert is_compiled("calc/__pycache__/calc.cpython-311.pyc")
    assert is_compiled("calc.pyc")
    assert not is_compiled("calc.py")


def test_every_test_file_of_go_counts() -> None:
    """A `TestMain` in a file of its own decides over all tests of its package."""
    assert is_test("zz_test.go", {"a_test.go"}, "go")


def test_the_outermost_folder_of_tests() -> None:
    assert folder_of("a/tests/b/tests/test_x.py") == "a/tests"
    assert folder_of("a/test_x.py") == ""


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("numpy/testing/tests/test_x.py", "numpy/testing/tests"),
        ("test_plus/tests/test_x.py", "test_plus/tests"),
        ("unit_tests/a/test_x.py", "unit_tests"),
        ("pkg/testing/test_x.py", "pkg/testing"),
        ("src/latest/contest/test_x.py", ""),
    ],
)
def test_folders_that_may_be_source_are_tests_only_without_another(path: str, folder: str) -> None:
    assert folder_of(path) == folder
