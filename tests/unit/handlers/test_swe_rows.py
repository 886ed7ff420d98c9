"""Rows of the task `swe`: our own layout and those of the public data sets, as their rows stand."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from workers.handlers.swe.layouts import ACTIVATE, LAYOUTS
from workers.handlers.swe.problem import SweProblem
from workers.handlers.swe.reversed_patch import reversed_patch
from workers.handlers.swe.swebench_specs import framework_of_parser, recipe_of_script
from workers.handlers.task_data import BadTaskData, layout_of, load_rows, problem_in

Row = dict[str, Any]  # as data sets write them
TEST_PATCH = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n-x\n+y\n"
OWN: Row = {
    "id": "a",
    "problem": "It is wrong.",
    "repository": {"a.py": "x = 1\n"},
    "test_files": {"test_a.py": "import a\n"},
    "framework": "unittest",
    "test_command": "python3 -m unittest test_a",
    "fail_to_pass": ["test_a.T.test_x"],
}
SWE_BENCH: Row = {
    "repo": "astropy/astropy",
    "instance_id": "astropy__astropy-12907",
    "base_commit": "d16bfe05a744909de4b27f5875fe0d4ed41ce607",
    "patch": "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n",
    "test_patch": TEST_PATCH,
    "problem_statement": "It is wrong.",
    "hints_text": "",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": '["tests/test_a.py::test_x"]',
    "PASS_TO_PASS": '["tests/test_a.py::test_y"]',
    "environment_setup_commit": "298ccb478e6bf092953bca67a3d29dc6c35f6752",
}
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
export LANG=en_US.UTF-8
git config --global --add safe.directory /testbed
git status
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
git checkout d16bfe tests/test_a.py
git apply -v - <<'EOF_114329324912'
{TEST_PATCH}
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_a.py
: '>>>>> End Test Output'
git checkout d16bfe tests/test_a.py
"""
SWE_GYM: Row = {
    **{name: value for name, value in SWE_BENCH.items() if name != "environment_setup_commit"},
    "instance_id": "getmoto__moto-5406",
    "repo": "getmoto/moto",
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": [],
}
SWE_SMITH: Row = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "patch": SWE_BENCH["patch"],
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": ["tests/test_b.py::test_y"],
    "created_at": "2025-01-01",
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "problem_statement": "",
}
R2E_COMMIT = {
    "file_diffs": [
        {"header": {"file": {"path": "aiohttp/a.py"}}, "old_file_content": "x\n", "new_file_content": "y\n"},
        {"header": {"file": {"path": "tests/test_a.py"}}, "old_file_content": "", "new_file_content": "t\n"},
    ]
}
R2E: Row = {
    "repo_name": "aiohttp",
    "docker_image": "namanjain12/aiohttp_final:f0d74880deec8fcd982bce639c93c5e130d41198",
    "commit_hash": "f0d74880deec8fcd982bce639c93c5e130d41198",
    "parsed_commit_content": json.dumps(R2E_COMMIT),
    "execution_result_content": "{}",
    "modified_files": ["aiohttp/a.py"],
    "problem_statement": "It is wrong.",
    "expected_output_json": json.dumps({"TestA.test_x": "PASSED", "test_y": "FAILED"}),
}


def read(row: Mapping[str, object]) -> SweProblem:
    return problem_in(row, LAYOUTS)


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        (OWN, "rollstream"),
        (SWE_BENCH, "SWE-bench"),
        (
            {**{k: v for k, v in SWE_BENCH.items() if k != "environment_setup_commit"}, "eval_script": SCRIPT},
            "SWE-bench (eval_script)",
        ),
        (SWE_GYM, "SWE-Gym"),
        (SWE_SMITH, "SWE-smith"),
        (R2E, "R2E-Gym"),
    ],
)
def test_a_layout_is_told_by_its_columns(row: Row, layout: str) -> None:
    assert layout_of(row, LAYOUTS, "here").name == layout


class TestOwn:
    def test_all_that_a_row_says(self) -> None:
        found = read({**OWN, "pass_to_pass": ["test_a.T.test_y"], "patch": "a patch", "test_timeout_s": 7, "env": {"A": "1"}})

        assert found.source.files == {"a.py": b"x = 1\n"}
        assert (found.tests.files, found.tests.timeout_s, found.tests.env) == ({"test_a.py": b"import a\n"}, 7.0, {"A": "1"})
        assert (found.gold, found.image) == (b"a patch", "")

    def test_a_tar_in_place_of_files(self) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            entry = tarfile.TarInfo("./bin/run")
            entry.size, entry.mode = 2, 0o755
            tar.addfile(entry, io.BytesIO(b"x\n"))
        row = {name: value for name, value in OWN.items() if name != "repository"}

        found = read({**row, "repository_tar": base64.b64encode(archive.getvalue()).decode()})

        assert (found.source.files, found.source.executable) == ({"bin/run": b"x\n"}, frozenset({"bin/run"}))

    @pytest.mark.parametrize("name", ["../a.py", "/a.py", ".git/hooks/x", "a//b", "a/../b"])
    def test_paths_stay_in_the_repository(self, name: str) -> None:
        with pytest.raises(BadTaskData, match="no path in a repository"):
            read({**OWN, "repository": {name: ""}})

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"repository_tar": "eA=="}, "one of"),
            ({"repository": {}}, "without files"),
            ({"fail_to_pass": []}, "without a test"),
            ({"fail_to_pass": "x"}, "expected JSON"),
            ({"framework": "nose"}, "expected one of pytest"),
            ({"hint": "x"}, "unknown fields"),
            ({"test_timeout_s": -1}, "expected seconds"),
            ({"env": {"A": 1}}, "map of names"),
        ],
    )
    def test_slips_are_named(self, changes: Row, why: str) -> None:
        with pytest.raises(BadTaskData, match=why):
            read({**OWN, **changes})

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
    def test_a_tar_with_what_is_no_file(self, kind: bytes) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo("link")
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
        row = {name: value for name, value in OWN.items() if name != "repository"}

        with pytest.raises(BadTaskData, match="no file of a repository"):
            read({**row, "repository_tar": base64.b64encode(archive.getvalue()).decode()})


class TestSweBench:
    def test_a_row_with_its_script(self) -> None:
        found = read({**SWE_BENCH, "eval_script": SCRIPT})

        assert found.image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest"
        assert (found.source.folder, found.source.base_commit) == ("/testbed", SWE_BENCH["base_commit"])
        assert (found.tests.framework, found.tests.command) == ("pytest", "pytest -rA tests/test_a.py")
        assert found.tests.before == f"{ACTIVATE}\nexport LANG=en_US.UTF-8"
        assert found.tests.setup.endswith("python -m pip install -e .")
        assert found.tests.fail_to_pass == ("tests/test_a.py::test_x",)
        assert found.tests.patch == TEST_PATCH.encode()
        assert found.gold is not None

    def test_what_the_row_says_itself_goes_first(self) -> None:
        found = read({**SWE_BENCH, "eval_script": SCRIPT, "image": "mine:1", "test_command": "pytest -rA"})

        assert (found.image, found.tests.command) == ("mine:1", "pytest -rA")

    def test_a_script_without_its_marks(self) -> None:
        with pytest.raises(BadTaskData, match="no test command"):
            recipe_of_script("pytest\n", "here")

    def test_tox_is_left_out(self) -> None:
        script = ": '>>>>> Start Test Output'\ntox --current-env -epy39 -v -- tests/test_a.py\n: '>>>>> End Test Output'\n"

        assert recipe_of_script(script, "here").command == "python -m pytest -rA --durations 25 tests/test_a.py"

    @pytest.mark.parametrize(
        ("parser", "repo", "expected"),
        [
            ("parse_log_django", "x/y", "django"),
            ("", "django/django", "django"),
            ("", "sympy/sympy", "sympy"),
            ("", "pallets/flask", "pytest"),
            ("parse_log_pytest_v2", "x/y", "pytest"),
            ("parse_log_gotest", "x/y", "go"),
            ("parse_log_jest", "x/y", "jest"),
            ("parse_log_cargo", "x/y", "cargo"),
        ],
    )
    def test_parsers(self, parser: str, repo: str, expected: str) -> None:
        assert framework_of_parser(parser, repo, "here") == expected

    def test_a_parser_that_we_do_not_have(self) -> None:
        with pytest.raises(BadTaskData, match="no parser"):
            framework_of_parser("parse_log_phpunit", "x/y", "here")


class TestSweGym:
    def test_a_row(self) -> None:
        found = read(SWE_GYM)

        assert found.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5406:latest"
        assert found.tests.command == "pytest -n0 -rA tests/test_a.py"
        assert found.tests.before == ACTIVATE

    def test_mypy_runs_cases_by_name(self) -> None:
        path = "test-data/unit/x.test"
        patch = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1,3 @@\n x\n+[case testB]\n+[case testA]\n"

        found = read({**SWE_GYM, "repo": "python/mypy", "test_patch": patch})

        assert found.tests.command == "pytest -n0 -rA -k 'testA or testB'"


class TestSweSmith:
    def test_the_patch_brings_the_bug_and_its_reverse_is_the_repair(self) -> None:
        found = read(SWE_SMITH)

        assert found.source.bug == SWE_SMITH["patch"].encode()
        assert found.gold is not None
        assert b"+x\n-y\n" in found.gold
        assert found.source.hidden == ("tests/test_a.py",)
        assert found.tests.command.endswith("tests/test_a.py tests/test_b.py")
        assert found.statement


class TestR2E:
    def test_a_row(self) -> None:
        found = read(R2E)

        assert found.tests.fail_to_pass == ("TestA.test_x",)
        assert found.tests.names_without_files
        assert found.gold == b"diff --git a/aiohttp/a.py b/aiohttp/a.py\n--- a/aiohttp/a.py\n+++ b/aiohttp/a.py\n@@ -1 +1 @@\n-x\n+y\n"
        assert found.source.hidden == ("run_tests.sh", "r2e_tests")

    def test_without_both_sides_there_is_no_repair(self) -> None:
        assert read({**R2E, "parsed_commit_content": "{}"}).gold is None


def test_a_reversed_patch_takes_back_what_the_patch_did(tmp_path: Path) -> None:
    """Against git itself: new, removed, renamed and changed files, modes, and lines that look like headers."""

    def git(*arguments: str, stdin: bytes = b"") -> bytes:
        settings = ("-c", "user.name=x", "-c", "user.email=x", "-c", "core.fileMode=true")
        return subprocess.run(["git", *settings, *arguments], cwd=tmp_path, input=stdin, capture_output=True, check=True).stdout

    git("init", "--quiet")
    (tmp_path / "changed").write_text("a\n-- b\n++ c\nd\n")
    (tmp_path / "removed").write_text("no end")
    (tmp_path / "moved").write_text("".join(f"line {number}\n" for number in range(20)))
    (tmp_path / "script").write_text("x\n")
    git("add", "--all")
    git("commit", "--quiet", "-m", "before")
    (tmp_path / "changed").write_text("a\n++ c\n-- b\nd\ne")
    (tmp_path / "removed").unlink()
    (tmp_path / "added").write_text("new\n")
    (tmp_path / "moved").rename(tmp_path / "there")
    (tmp_path / "script").chmod(0o755)
    git("add", "--all")
    patch = git("diff", "--cached", "HEAD")

    git("apply", "-", stdin=reversed_patch(patch))

    git("add", "--all")
    assert git("status", "--porcelain") == b""


def test_our_samples_are_problems_of_our_own_layout() -> None:
    from workers.handlers.swe.handler import SweHandler

    (sample,) = SweHandler.samples
    found = load_rows(sample, LAYOUTS)

    assert found.layout == "rollstream"
    assert len(found.rows) >= 20
    for row in found.rows:
        problem = read(row)
        assert problem.gold
        assert problem.tests.pass_to_pass
        assert problem.tests.framework == "unittest"
