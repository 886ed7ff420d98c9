"""What of a patch must not count when tests run: files that steer the runner, and the task's own tests.

Invariants
    - What is put back has, byte for byte, what the base commit has there; what the base commit does not have is removed. Nothing is
      written through a link of the patch.
    - A file that also says other things (`pyproject.toml`, `setup.cfg`, `package.json`, ...) is put back only when the part changed that
      a runner reads.
    - A repository that is itself a test runner, or has a module of a standard name, keeps its own: a name hides the runner's only where
      the base commit does not have it.
    - It is told. Alone it decides nothing: an honest repair that came with a `conftest.py` is judged like any other.
"""

from __future__ import annotations

import configparser
import json
import posixpath
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from workers.graders.errors import GraderError
from workers.graders.swe.repository import git
from workers.sandbox import Sandbox
from workers.sandbox.errors import SandboxFileError

GRADER = "swe"
PUT_BACK_S = 60.0
MAX_CONFIGURATION_BYTES = 4 * 1024 * 1024

PYTHON = frozenset(("pytest", "unittest", "django", "sympy"))
TEST_FOLDERS = (re.compile(r"tests?|__tests__|spec"), re.compile(r"testing"), re.compile(r"(.+[_-])?(unit)?tests?|tests[_-].+"))
"""A folder of that name that holds a test of the task is all tests: helpers and data beside them decide as much as they do. What comes
first here goes before: `testing/` and `tools_test/` with `tests/` in them are source."""
INSTALLED = frozenset(("site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox", "node_modules"))
"""Installed programs and packages: the runner is one of them."""
ROOTS = frozenset(("", "src", "lib", "python"))
"""Folders that usually stand on Python's path, beside those that the task says."""
RUNNER_MODULES = frozenset(
    (
        *(
            "pytest",
            "_pytest",
            "pluggy",
            "iniconfig",
            "packaging",
            "py",
            "exceptiongroup",
            "tomli",
            "pygments",
            "colorama",
            "xdist",
            "execnet",
        ),
        *("attr", "attrs", "importlib_metadata", "typing_extensions", "zipp", "nose", "django", "mock", "coverage"),
        *("hypothesis", "parameterized", "ddt", "freezegun", "testtools", "hamcrest", "anyio", "trio", "asynctest", "pyfakefs"),
    )
)
"""Of the runner, of its plugins, and of what tests are written with."""
_RUNNER_PLUGIN = re.compile(r"_?pytest_.+|_hypothesis_.+")
_PYTHON_NAMES = frozenset(
    (
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml", "noxfile.py", "nose.cfg"),
        *(".noserc", ".coveragerc", "unittest.cfg", ".testr.conf", ".stestr.conf"),
    )
)
_JS_NAME = re.compile(
    r"(jest|babel|vitest|vite|karma|ava|cypress|playwright)\.(config|setup)\..+|\.babelrc.*|\.mocharc.*|\.npmrc|\.yarnrc.*|\.pnp\..+"
)
_MODULE_ENDINGS = frozenset(("py", "pyc", "so", "pyd"))
_CUSTOMIZE = re.compile(r"(site|user)customize(\..*)?")
_METADATA = re.compile(r".+\.(egg-info|dist-info)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """What was put back."""

    steering: tuple[str, ...] = ()
    """Files that steer the runner."""
    tests: tuple[str, ...] = ()
    """Files of the tests."""
    rewritten_tests: tuple[str, ...] = ()
    """Of those, the ones that lost lines of the base commit, or were removed; a test added beside the others is no offence."""
    compiled: tuple[str, ...] = ()
    """Bytecode."""


async def put_back(
    sandbox: Sandbox,
    repo: str,
    base_commit: str,
    changed: Collection[str],
    *,
    framework: str,
    command: str,
    test_files: Collection[str],
    import_roots: Collection[str] = (),
) -> PutBack:
    """Undoes what a patch did to files that steer and to tests.

    Args:
        changed: every path that the patch touched, relative to the repository.
        command: how tests are run; files that it names are the task's.
        test_files: where the task's tests are, whether in the repository already or not.
        import_roots: folders of the repository that stand on Python's path.
    """
    if not changed:
        return PutBack()
    at_base = await tree_entries(sandbox, repo, base_commit)
    import_roots = {*import_roots, *_folders_on_path(at_base, test_files)} if framework in PYTHON else import_roots
    tops = _top_names(at_base, ROOTS | frozenset(import_roots))
    tests = sorted(path for path in changed if is_test(path, test_files, framework))
    steering: list[str] = []
    compiled = sorted(path for path in set(changed) - set(tests) if framework in PYTHON and is_compiled(path))
    for path in sorted(set(changed) - {*tests, *compiled}):
        hides = framework in PYTHON and path not in at_base and hides_test(path, test_files)
        if hides or steers(path, framework, command=command, known_modules=tops, import_roots=import_roots):
            steering.append(path)
        elif (part := steering_part_of(path, framework)) is not None:
            before = await _blob(sandbox, repo, at_base[path][1]) if path in at_base else b""
            if part(before) != part(await _content(sandbox, repo, path)):
                steering.append(path)
    rewritten = await _rewritten(sandbox, repo, base_commit, [path for path in tests if path in at_base])
    await restore(sandbox, repo, [(path, *at_base.get(path, ("0", ""))) for path in (*tests, *compiled, *steering)])
    return PutBack(steering=tuple(steering), tests=tuple(tests), rewritten_tests=tuple(rewritten), compiled=tuple(compiled))


def is_test(path: str, test_files: Collection[str], framework: str) -> bool:
    """Whether a path is of the task's tests, or one that they cannot be reached without (a folder that became a link)."""
    if framework == "go" and path.endswith("_test.go"):
        return True
    for test in test_files:
        if path == test or test.startswith(f"{path}/"):
            return True
        folder = test_folder(test)
        if folder and path.startswith(f"{folder}/"):
            return True
    return False


def is_compiled(path: str) -> bool:
    """Bytecode, which Python may load in place of the source that it says it is of. Whoever runs Python leaves some: no offence."""
    return "__pycache__" in path.split("/") or path.endswith((".pyc", ".pyo"))


def hides_test(path: str, test_files: Collection[str]) -> bool:
    """Whether Python would take a new file for a test, or for a folder on the way to it: a package or a compiled module of a test's name is
    found before its source, and a module before a folder without `__init__.py`."""
    for test in test_files:
        parts = test.removesuffix(".py").split("/")
        if path.startswith(f"{'/'.join(parts)}/"):
            return True
        for count in range(1, len(parts) + 1):
            rest = path.removeprefix("/".join(parts[:count]) + ".")
            if rest != path and rest.split(".")[-1] in _MODULE_ENDINGS:
                return True
    return False


def test_folder(path: str) -> str:
    """The outermost folder of tests that a test lies in; empty when it lies in none."""
    parts = path.split("/")[:-1]
    for names in TEST_FOLDERS:
        for index, part in enumerate(parts):
            if names.fullmatch(part):
                return "/".join(parts[: index + 1])
    return ""


def steers(
    path: str,
    framework: str,
    *,
    command: str = "",
    known_modules: Mapping[str, Collection[str]] | None = None,
    import_roots: Collection[str] = (),
) -> bool:
    """Whether a file as a whole tells the runner what to do.

    Args:
        known_modules: what the base commit has at the top of each folder on Python's path.
    """
    folder, name = posixpath.split(path)
    parts = path.split("/")
    if not INSTALLED.isdisjoint(parts) or path in _named_in(command):
        return True
    if framework in PYTHON:
        if name in _PYTHON_NAMES or name.endswith((".pth", ".egg-link")) or any(_CUSTOMIZE.fullmatch(part) for part in parts):
            return True
        return any(_METADATA.fullmatch(part) for part in parts) or _hides(parts, known_modules or {}, ROOTS | frozenset(import_roots))
    if framework == "jest":
        return _JS_NAME.fullmatch(name) is not None or "__mocks__" in parts
    if framework == "go":
        return name == "go.work"
    if framework == "cargo":
        return ".cargo" in parts or name in ("build.rs", "rust-toolchain", "rust-toolchain.toml")
    return name in ("conftest.py", "Makefile") or bool(folder == "" and name == "run_tests.sh")


def steering_part_of(path: str, framework: str) -> Callable[[bytes], object] | None:
    """For a file that says several things: what reads the part of its content that steers. None = no such file."""
    name = posixpath.basename(path)
    if framework in PYTHON:
        return {"pyproject.toml": _pyproject, "setup.cfg": _setup_cfg}.get(name)
    if framework == "jest":
        return _package_json if name == "package.json" else None
    if framework == "cargo":
        return _cargo_toml if name == "Cargo.toml" else None
    return None


async def restore(sandbox: Sandbox, repo: str, entries: Sequence[tuple[str, str, str]]) -> None:
    """Writes paths as git has them: (path, mode, hash), mode 0 = not there. Shorter paths first, so that a folder that became a link or a
    file is one again before what lies in it is written.

    Raises:
        GraderError: it could not be done.
    """
    if not entries:
        return
    told = "".join(f"{mode}\0{sha}\0{path}\0" for path, mode, sha in sorted(entries, key=lambda entry: (entry[0].count("/"), entry[0])))
    done = await sandbox.exec(["bash", "-c", _RESTORE], stdin=told.encode("utf-8", "surrogateescape"), cwd=repo, timeout_s=PUT_BACK_S)
    if done.returncode != 0:
        raise GraderError(f"files of the base commit were not put back: {done.stderr_text[-500:]}", grader=GRADER)


_RESTORE = r"""
set -e
while IFS= read -r -d '' mode && IFS= read -r -d '' sha && IFS= read -r -d '' path; do
    rm -rf -- "./$path"
    [ "$mode" = 0 ] && continue
    mkdir -p -- "$(dirname -- "./$path")"
    case "$mode" in
    120000) ln -s -- "$(git -c safe.directory='*' cat-file blob "$sha")" "./$path" ;;
    160000) mkdir -p -- "./$path" ;;
    *)
        git -c safe.directory='*' cat-file blob "$sha" > "./$path"
        if [ "$mode" = 100755 ]; then chmod 755 "./$path"; else chmod 644 "./$path"; fi
        ;;
    esac
done
"""


# -- what is where -------------------------------------------------------------------------------------------------------------------


async def tree_entries(sandbox: Sandbox, repo: str, tree: str) -> dict[str, tuple[str, str]]:
    """Mode and hash of every file of a tree, by path."""
    listed = await git(sandbox, repo, "ls-tree", "-r", "-z", "--full-tree", tree)
    entries: dict[str, tuple[str, str]] = {}
    for record in listed.decode("utf-8", "surrogateescape").split("\0"):
        if record:
            fields, _, path = record.partition("\t")
            mode, _, sha = fields.split(" ")
            entries[path] = (mode, sha)
    return entries


def _folders_on_path(at_base: Collection[str], test_files: Collection[str]) -> set[str]:
    """Folders of tests that are no packages: pytest puts them in front of Python's path. In a folder of tests all is put back anyhow."""
    folders = {posixpath.dirname(path) for path in test_files if path.endswith(".py") and not test_folder(path)} - {""}
    return {folder for folder in folders if f"{folder}/__init__.py" not in {*at_base, *test_files}}


def _top_names(paths: Iterable[str], roots: Collection[str]) -> dict[str, set[str]]:
    """The modules that the base commit has right in each root."""
    found: dict[str, set[str]] = {root: set() for root in roots}
    for path in paths:
        for root in roots:
            inner = path.removeprefix(f"{root}/") if root else path
            if root == "" or inner != path:
                found[root].add(inner.split("/")[0].split(".")[0])
    return found


async def _rewritten(sandbox: Sandbox, repo: str, base_commit: str, paths: Sequence[str]) -> list[str]:
    """Those that lost lines, or whose lines cannot be counted."""
    if not paths:
        return []
    counted = await git(sandbox, repo, "diff", "--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", base_commit)
    lost: list[str] = []
    for record in counted.decode("utf-8", "surrogateescape").split("\0"):
        added, _, rest = record.partition("\t")
        removed, _, path = rest.partition("\t")
        if path in paths and (removed not in ("0", "") or added == "-"):
            lost.append(path)
    return lost


async def _blob(sandbox: Sandbox, repo: str, sha: str) -> bytes:
    return await git(sandbox, repo, "cat-file", "blob", sha)


async def _content(sandbox: Sandbox, repo: str, path: str) -> bytes:
    """What is there now; nothing for a file that the patch removed, a mark of its own for what is no file."""
    try:
        return await sandbox.read_file(posixpath.join(repo, path), max_bytes=MAX_CONFIGURATION_BYTES)
    except SandboxFileError as error:
        return b"" if error.trouble == "not_found" else b"\0no file"


# -- rules ---------------------------------------------------------------------------------------------------------------------------


def _named_in(command: str) -> set[str]:
    """Paths that a command names, as they would be written relative to the repository."""
    try:
        words = shlex.split(command, comments=False)
    except ValueError:
        words = command.split()
    return {posixpath.normpath(word.split("::")[0]) for word in words if "/" in word or "." in word} | (
        {"Makefile"} if "make" in words else set()
    )


def _hides(parts: Sequence[str], known: Mapping[str, Collection[str]], roots: Collection[str]) -> bool:
    """Whether a module would be found before one of the standard library or of the runner, and the base commit has none such."""
    for root in roots:
        inner = parts if root == "" else parts[root.count("/") + 1 :] if "/".join(parts[: root.count("/") + 1]) == root else ()
        if not inner:
            continue
        module, _, ending = inner[0].partition(".")
        is_module = len(inner) > 1 or ending in ("py", "pyc", "so", "pyd") or ending.endswith(".so")
        if is_module and module not in known.get(root, ()) and _is_of_runner(module):
            return True
    return False


def _is_of_runner(module: str) -> bool:
    return module in sys.stdlib_module_names or module in RUNNER_MODULES or _RUNNER_PLUGIN.fullmatch(module) is not None


def _pyproject(content: bytes) -> object:
    try:
        found = tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        return content
    tool = found.get("tool", {})
    project = found.get("project", {})
    tables = (
        {name: tool.get(name) for name in ("pytest", "tox", "nox", "coverage", "hatch", "pdm", "poe")} if isinstance(tool, dict) else tool
    )
    points = project.get("entry-points") if isinstance(project, dict) else project
    return (
        {name: value for name, value in {**tables, "entry-points": points}.items() if value is not None}
        if isinstance(tables, dict)
        else tables
    )


def _setup_cfg(content: bytes) -> object:
    """As `configparser` reads it, and as pytest does, which ends lines at more characters, and a section's name at its first bracket."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        text = content.decode()
        parser.read_string(text)
    except (ValueError, configparser.Error):
        return content
    steering = ("tool:pytest", "pytest", "aliases", "nosetests", "coverage:run", "unittest", "test", "options.entry_points")
    lines: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("["):
            name = line[1:].partition("]")[0].strip()
        elif line.strip() and not line.lstrip().startswith(("#", ";")) and (name in steering or name.startswith("tox")):
            lines.setdefault(name, []).append(line.rstrip())
    return {name: dict(parser.items(name)) for name in parser.sections() if name in steering or name.startswith("tox")}, lines


def _package_json(content: bytes) -> object:
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return content
    names = ("scripts", "jest", "babel", "mocha", "ava", "vitest", "nyc", "c8", "type", "imports")
    return {name: found[name] for name in names if name in found} if isinstance(found, dict) else content


def _cargo_toml(content: bytes) -> object:
    try:
        found = tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        return content
    return {name: found[name] for name in ("lib", "test", "bench", "profile", "patch") if name in found}
