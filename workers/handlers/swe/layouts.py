"""How rows of the task `swe` may be written: our own layout, and those of the public data sets.

Own layout (`repo + tests`), all of it text that a person can write:

    {"id": ..., "problem": "what is wrong", "repository": {"path": "text", ...},
     "test_files": {"path": "text", ...}, "framework": "unittest", "test_command": "python3 -m unittest -v tests.test_x",
     "fail_to_pass": [...], "pass_to_pass": [...], "patch": "the reference repair", "image": "", "env": {}, "test_timeout_s": 600}

`repository_tar` (a tar in base64, of any compression) may stand in place of `repository`. Without `image` the node's own programs are used.

Public data sets name images of a registry; the name follows from the row. `image`, `framework` and `test_command` of a row go before what
its data set says.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from workers.graders.swe.evaluate import SweTests, paths_of_patch
from workers.graders.swe.logs import FRAMEWORKS
from workers.graders.swe.repository import RepositorySource
from workers.handlers.swe.problem import SweProblem
from workers.handlers.swe.r2e_commit import gold_of_commit
from workers.handlers.swe.reversed_patch import reversed_patch
from workers.handlers.swe.swebench_specs import framework_of_parser, recipe_of_script, script_of_row
from workers.handlers.swe.tar_files import files_of_tar
from workers.handlers.task_data import BadTaskData, Layout, Row, json_of, only_known, text_of

TESTBED = "/testbed"
"""Where the images of all four data sets have the repository."""
ACTIVATE = "source /opt/miniconda3/bin/activate\nconda activate testbed"
MAX_STATEMENT_CHARS = 200_000
MAX_PATCH_CHARS = 4_000_000
MAX_FILE_CHARS = 4_000_000
NOT_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml", ".rst", ".ini", ".cfg")
"""Data beside tests, which no runner takes as an argument."""
R2E_HIDDEN = ("run_tests.sh", "r2e_tests")
_GYM_COMMANDS = {
    "getmoto/moto": "pytest -n0 -rA",
    "dask/dask": "pytest -n0 -rA --color=no",
    "python/mypy": "pytest -n0 -rA -k",
    "bokeh/bokeh": "pytest -n0 -rA",
    "modin-project/modin": "pytest -n0 -rA",
    "conan-io/conan": "pytest -n0 -rA",
}
"""Where plain `pytest -rA` will not do."""
_OWN_FIELDS = frozenset(
    (
        *("id", "problem", "repository", "repository_tar", "executable", "test_files", "removed_tests", "framework", "test_command"),
        *("fail_to_pass", "pass_to_pass", "patch", "image", "env", "test_timeout_s", "source"),
    )
)


# -- our own -------------------------------------------------------------------------------------------------------------------------


def _own(row: Row, place: str) -> SweProblem:
    only_known(row, _OWN_FIELDS, place)
    if ("repository" in row) == ("repository_tar" in row):
        raise BadTaskData(f"{place}: expected one of `repository` and `repository_tar`", field="repository")
    executable = frozenset(_names(row, "executable", place))
    if "repository" in row:
        files = _files(row, "repository", place)
    else:
        files, marked = files_of_tar(text_of(row, "repository_tar", place, longest=64_000_000), place)
        executable |= marked
    if not files:
        raise BadTaskData(f"{place}: a repository without files", field="repository")
    tests = SweTests(
        framework=_framework(row, "pytest", place),
        command=text_of(row, "test_command", place),
        fail_to_pass=_needed(row, "fail_to_pass", place),
        pass_to_pass=_names(row, "pass_to_pass", place),
        files=_files(row, "test_files", place),
        removed=_names(row, "removed_tests", place),
        env=_env(row, place),
        timeout_s=_timeout(row, place, 600.0),
    )
    return SweProblem(
        statement=text_of(row, "problem", place, longest=MAX_STATEMENT_CHARS),
        source=RepositorySource(files=files, executable=executable, folder="repo"),
        tests=tests,
        image=_text_or(row, "image", "", place),
        gold=_patch(row, "patch", place),
    )


# -- SWE-bench and its kin -----------------------------------------------------------------------------------------------------------


def _swe_bench(row: Row, place: str) -> SweProblem:
    """SWE-bench, Lite and Verified. How tests are run is in the row since version 5, before in the package `swebench`."""
    name = text_of(row, "instance_id", place)
    script = script_of_row(row, place)
    recipe = recipe_of_script(script, place)
    parser = row.get("log_parser")
    framework = framework_of_parser(parser if isinstance(parser, str) else "", text_of(row, "repo", place), place)
    tests = replace(_of_lists(row, place), framework=framework, command=recipe.command, before=recipe.before, setup=recipe.setup)
    image = f"swebench/sweb.eval.x86_64.{name.replace('__', '_1776_')}:latest".lower()
    return _in_testbed(row, place, tests, image)


def _swe_gym(row: Row, place: str) -> SweProblem:
    name, repo = text_of(row, "instance_id", place), text_of(row, "repo", place)
    tests = _of_lists(row, place)
    command = _GYM_COMMANDS.get(repo.lower(), "pytest -rA")
    if repo.lower() == "python/mypy":  # its tests are cases in data files, run by their names
        cases = sorted(set(re.findall(r"\[case ([^\]]+)\]", tests.patch.decode("utf-8", "replace"))))
        command = f"{command} {shlex.quote(' or '.join(cases))}"
    else:
        command = " ".join((command, *map(shlex.quote, _test_paths(tests.patch))))
    image = f"xingyaoww/sweb.eval.x86_64.{name.replace('__', '_s_')}:latest".lower()
    return _in_testbed(row, place, replace(tests, command=command, before=ACTIVATE), image)


def _swe_smith(row: Row, place: str) -> SweProblem:
    """`patch` brings the bug; taking it back is the repair. Tests are in the image, those to be fixed are taken away for the agent."""
    bug = _patch(row, "patch", place)
    if bug is None:
        raise BadTaskData(f"{place}: expected the patch that brings the bug", field="patch")
    fail, keep = _needed(row, "FAIL_TO_PASS", place), _names(row, "PASS_TO_PASS", place)
    hidden = sorted({test.split("::")[0] for test in fail})
    every = sorted({test.split("::")[0] for test in (*fail, *keep)})
    command = " ".join(("pytest -rA --disable-warnings --color=no --tb=no", *map(shlex.quote, every)))
    tests = SweTests(framework="pytest", command=command, before=ACTIVATE, fail_to_pass=fail, pass_to_pass=keep)
    statement = row.get("problem_statement")
    if not isinstance(statement, str) or not statement.strip():
        statement = "Some tests of this repository fail. Find out what is wrong and repair it."
    return SweProblem(
        statement=statement,
        source=RepositorySource(folder=TESTBED, bug=bug, hidden=tuple(hidden)),
        tests=_with_own(row, place, tests),
        image=text_of(row, "image_name", place),
        gold=reversed_patch(bug),
        is_offline=True,
    )


def _r2e_gym(row: Row, place: str) -> SweProblem:
    """Judged by the tests that the real commit is known to pass, run by the image's own script."""
    expected = json_of(row, "expected_output_json", place)
    if not isinstance(expected, Mapping) or not expected:
        raise BadTaskData(f"{place}: expected a map of tests to how they end", field="expected_output_json")
    passing = tuple(str(name) for name, status in expected.items() if status == "PASSED" and str(name))
    tests = SweTests(
        framework="pytest",
        command="bash run_tests.sh",
        setup="[ -e r2e_tests ] || ln -s /r2e_tests r2e_tests",
        fail_to_pass=passing,
        places=R2E_HIDDEN,
        names_without_files=True,
        timeout_s=300.0,
    )
    commit = json_of(row, "parsed_commit_content", place)
    return SweProblem(
        statement=text_of(row, "problem_statement", place, longest=MAX_STATEMENT_CHARS),
        source=RepositorySource(folder=TESTBED, hidden=R2E_HIDDEN, also_removed=("/r2e_tests", "/run_tests.sh", "/root/r2e_tests")),
        tests=_with_own(row, place, tests),
        image=text_of(row, "docker_image", place),
        gold=gold_of_commit(commit) if isinstance(commit, Mapping) else None,
        is_offline=True,
    )


_LISTS = frozenset(("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"))
LAYOUTS: Sequence[Layout[SweProblem]] = (
    Layout(name="rollstream", columns=frozenset(("problem", "test_command", "fail_to_pass")), read=_own),
    Layout(
        name="R2E-Gym",
        columns=frozenset(("repo_name", "docker_image", "commit_hash", "problem_statement", "expected_output_json")),
        read=_r2e_gym,
        id_column="commit_hash",
    ),
    Layout(name="SWE-bench", columns=_LISTS | {"environment_setup_commit"}, read=_swe_bench, id_column="instance_id"),
    Layout(name="SWE-bench (eval_script)", columns=_LISTS | {"eval_script"}, read=_swe_bench, id_column="instance_id"),
    Layout(
        name="SWE-smith",
        columns=frozenset(("instance_id", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "image_name", "repo")),
        read=_swe_smith,
        id_column="instance_id",
    ),
    Layout(name="SWE-Gym", columns=_LISTS | {"version"}, read=_swe_gym, id_column="instance_id"),
)


def _of_lists(row: Row, place: str) -> SweTests:
    """What SWE-bench's columns say of tests; how they are run is to be added."""
    return SweTests(
        framework="pytest",
        command="",
        fail_to_pass=_needed(row, "FAIL_TO_PASS", place),
        pass_to_pass=_names(row, "PASS_TO_PASS", place),
        patch=text_of(row, "test_patch", place, longest=MAX_PATCH_CHARS).encode(),
    )


def _in_testbed(row: Row, place: str, tests: SweTests, image: str) -> SweProblem:
    return SweProblem(
        statement=text_of(row, "problem_statement", place, longest=MAX_STATEMENT_CHARS),
        source=RepositorySource(folder=TESTBED, base_commit=text_of(row, "base_commit", place)),
        tests=_with_own(row, place, tests),
        image=_text_or(row, "image", image, place),
        gold=_patch(row, "patch", place),
        is_offline=True,
    )


def _with_own(row: Row, place: str, tests: SweTests) -> SweTests:
    """What a row says itself goes before what its data set says."""
    return replace(
        tests,
        framework=_framework(row, tests.framework, place),
        command=_text_or(row, "test_command", tests.command, place),
        timeout_s=_timeout(row, place, tests.timeout_s),
        env=_env(row, place),
    )


def _test_paths(patch: bytes) -> list[str]:
    """Files of a patch of tests that a runner can be given; of removed ones there is nothing to run."""
    removed = set(re.findall(r"^--- a/(\S+)\r?\n\+\+\+ /dev/null", patch.decode("utf-8", "replace"), re.MULTILINE))
    return sorted(path for path in paths_of_patch(patch) - removed if not path.endswith(NOT_TESTS))


# -- fields --------------------------------------------------------------------------------------------------------------------------


def _names(row: Row, name: str, place: str) -> tuple[str, ...]:
    """A list of texts, or one written as JSON; nothing when it is not there."""
    if row.get(name) is None:
        return ()
    found = json_of(row, name, place)
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) and each for each in found):
        raise BadTaskData(f"{place}: expected a list of texts, found {found!r:.80}", field=name)
    return tuple(cast(Sequence[str], found))


def _needed(row: Row, name: str, place: str) -> tuple[str, ...]:
    found = _names(row, name, place)
    if not found:
        raise BadTaskData(f"{place}: without a test that must pass nothing can be judged", field=name)
    return found


def _files(row: Row, name: str, place: str) -> dict[str, bytes]:
    found = row.get(name) or {}
    if not isinstance(found, Mapping):
        raise BadTaskData(f"{place}: expected a map of paths to texts, found {type(found).__name__}", field=name)
    files: dict[str, bytes] = {}
    for path, content in found.items():
        parts = str(path).split("/")
        if not isinstance(content, str) or len(content) > MAX_FILE_CHARS:
            raise BadTaskData(f"{place}: expected a text of at most {MAX_FILE_CHARS} characters at {path!r:.80}", field=name)
        if any(part in ("", ".", "..", ".git") for part in parts):
            raise BadTaskData(f"{place}: {path!r:.80} is no path in a repository", field=name)
        files[str(path)] = content.encode()
    return files


def _patch(row: Row, name: str, place: str) -> bytes | None:
    found = row.get(name)
    return None if not isinstance(found, str) or not found.strip() else text_of(row, name, place, longest=MAX_PATCH_CHARS).encode()


def _text_or(row: Row, name: str, default: str, place: str) -> str:
    return text_of(row, name, place) if row.get(name) not in (None, "") else default


def _framework(row: Row, default: str, place: str) -> str:
    found = _text_or(row, "framework", default, place)
    if found not in FRAMEWORKS:
        raise BadTaskData(f"{place}: expected one of {', '.join(FRAMEWORKS)}, found {found!r:.40}", field="framework")
    return found


def _env(row: Row, place: str) -> dict[str, str]:
    found = row.get("env") or {}
    if not isinstance(found, Mapping) or not all(isinstance(value, str) for value in found.values()):
        raise BadTaskData(f"{place}: expected a map of names to texts", field="env")
    return {str(name): str(value) for name, value in found.items()}


def _timeout(row: Row, place: str, default: float) -> float:
    found = row.get("test_timeout_s", default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= 36_000:
        raise BadTaskData(f"{place}: expected seconds, found {found!r:.40}", field="test_timeout_s")
    return float(found)
