"""Repositories that are in an image already, as the public data sets have them: what INIT leaves the agent, and what EVAL makes of a patch.

The image is made in the sandbox itself; without walls, since what runs is ours.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from workers.graders import GraderError
from workers.graders.swe import extract_patch
from workers.graders.swe.evaluate import Evaluation, SweTests, evaluate
from workers.graders.swe.repository import RepositorySource, lay_files, prepare_repository
from workers.handlers.swe.reversed_patch import reversed_patch
from workers.sandbox import Isolation, Sandbox, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
PYTEST = f"{sys.executable} -m pytest -rA -p no:cacheprovider"
GOOD = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return add(a, a)\n"
BAD = GOOD.replace("a + b", "a - b")
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
OTHER_TEST = "from calc import add\n\n\ndef test_zero():\n    assert add(1, 0) == 1\n"
PATCH = b"""diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
Image = Callable[[Mapping[str, str]], AbstractAsyncContextManager[tuple[Sandbox, str]]]


@pytest.fixture
async def image(place: Path) -> AsyncIterator[Image]:
    """Sandboxes with a repository of these files, at a commit; and its folder."""
    made: list[str] = []
    async with LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here") as provider:

        @asynccontextmanager
        async def sandbox_with(files: Mapping[str, str]) -> AsyncIterator[tuple[Sandbox, str]]:
            made.append("job")
            owner = SandboxOwner(job_id=f"job{len(made)}", attempt=1, boot_id="boot")
            async with await provider.start(SandboxSpec(isolation=Isolation.NONE), owner) as sandbox:
                folder = f"{sandbox.workdir}/testbed"
                await lay_files(sandbox, folder, {path: text.encode() for path, text in files.items()})
                commit = "git init -q && git add -A && git -c user.name=x -c user.email=x@x commit -qm first"
                assert (await sandbox.exec(commit, cwd=folder, timeout_s=30)).returncode == 0
                yield sandbox, folder

        yield sandbox_with


def told(found: Evaluation) -> str:
    return f"{found.reason}: {found.detail}\n{found.log[-2000:].decode(errors='replace')}"


async def head(sandbox: Sandbox, folder: str) -> str:
    return (await sandbox.exec("git rev-parse HEAD", cwd=folder, timeout_s=10)).stdout_text.strip()


async def test_hidden_tests_come_as_a_patch_and_an_image_may_differ_from_its_commit(image: Image) -> None:
    """SWE-bench: images change files after their base commit, without a commit; that is the task's doing, not the agent's."""
    lines = TEST.splitlines()
    new_file = "diff --git a/tests/test_calc.py b/tests/test_calc.py\nnew file mode 100644\n--- /dev/null\n+++ b/tests/test_calc.py\n"
    added = new_file + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    tests = SweTests(
        framework="pytest",
        command=f"{PYTEST} tests/test_calc.py",
        fail_to_pass=("tests/test_calc.py::test_add",),
        patch=added.encode(),
        before="export FOO=1",
        setup="echo built > built.txt",
        env=QUICK,
        timeout_s=60,
    )
    async with image({"calc.py": BAD, "setup.cfg": "[metadata]\nname = a\n"}) as (sandbox, folder):
        source = RepositorySource(folder=folder, base_commit=await head(sandbox, folder))
        await sandbox.write_file(f"{folder}/setup.cfg", b"[metadata]\nname = a\nversion = 1\n")

        found = await evaluate(sandbox, source, tests, PATCH)

        assert found.resolved, told(found)
        assert found.tampering == ()
        assert await sandbox.read_file(f"{folder}/built.txt") == b"built\n"
        assert b"version = 1" in await sandbox.read_file(f"{folder}/setup.cfg")


async def test_an_image_that_does_not_have_the_base_commit_is_no_zero(image: Image) -> None:
    async with image({"calc.py": BAD}) as (sandbox, folder):
        with pytest.raises(GraderError, match="merge-base"):
            await prepare_repository(sandbox, RepositorySource(folder=folder, base_commit="0" * 40))


async def test_a_bug_that_comes_as_a_patch_and_tests_that_the_agent_must_not_see(image: Image) -> None:
    """SWE-smith: the image has the repository without the bug, and all tests."""
    files = {"calc.py": GOOD, "tests/test_calc.py": TEST, "tests/test_other.py": OTHER_TEST}
    bug = reversed_patch(PATCH)
    tests = SweTests(
        framework="pytest",
        command=f"{PYTEST} tests",
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=("tests/test_other.py::test_zero",),
        env=QUICK,
        timeout_s=60,
    )
    async with image(files) as (sandbox, folder):
        source = RepositorySource(folder=folder, bug=bug, hidden=("tests/test_calc.py",))
        prepared = await prepare_repository(sandbox, source)
        assert (await sandbox.read_file(f"{folder}/calc.py")).decode() == BAD
        assert [entry.name for entry in await sandbox.list(f"{folder}/tests")] == ["test_other.py"]
        await sandbox.write_file(f"{folder}/calc.py", GOOD.encode())
        await sandbox.write_file(f"{folder}/tests/test_calc.py", b"def test_add():\n    pass\n")
        patch = await extract_patch(sandbox, folder, prepared.base_commit)

    async with image(files) as (sandbox, folder):
        found = await evaluate(sandbox, RepositorySource(folder=folder, bug=bug, hidden=("tests/test_calc.py",)), tests, patch.diff)
        assert found.resolved, told(found)
        assert (await sandbox.read_file(f"{folder}/tests/test_calc.py")).decode() == TEST

    async with image(files) as (sandbox, folder):
        found = await evaluate(sandbox, RepositorySource(folder=folder, bug=bug, hidden=("tests/test_calc.py",)), tests, b"")
        assert (found.resolved, found.reason) == (False, "empty_patch")


async def test_a_script_of_the_image_runs_tests_that_are_named_without_files(image: Image) -> None:
    """R2E-Gym: the script and its tests lie in the repository, and are taken away from the agent."""
    files = {
        ".gitignore": "run_tests.sh\n",
        "calc.py": BAD,
        "run_tests.sh": f"{PYTEST} r2e_tests\n",
        "r2e_tests/test_1.py": f"{TEST}\n\nclass TestA:\n    def test_x(self):\n        assert add(2, 2) == 4\n",
    }
    tests = SweTests(
        framework="pytest",
        command="bash run_tests.sh",
        fail_to_pass=("test_add", "TestA.test_x"),
        places=("run_tests.sh", "r2e_tests"),
        names_without_files=True,
        env={**QUICK, "PYTHONPATH": "."},
        timeout_s=60,
    )
    for patch, resolved in ((PATCH, True), (PATCH.replace(b"+    return a + b", b"+    return b - a"), False)):
        async with image(files) as (sandbox, folder):
            source = RepositorySource(folder=folder, hidden=("run_tests.sh", "r2e_tests"))

            found = await evaluate(sandbox, source, tests, patch)

            assert found.resolved is resolved, told(found)
            assert found.verdict is not None
            assert set(found.verdict.fail_to_pass) == {"test_add", "TestA.test_x"}


async def test_a_runner_that_never_comes_up_is_no_zero(image: Image) -> None:
    """An image without the runner, or a command with a slip: with the gold patch it would be the same."""
    tests = SweTests(framework="pytest", command=f"{sys.executable} -m no_such_runner", fail_to_pass=("t.py::test_a",), timeout_s=30)
    async with image({"calc.py": BAD}) as (sandbox, folder):
        with pytest.raises(GraderError, match="did not come up"):
            await evaluate(sandbox, RepositorySource(folder=folder), tests, PATCH)


async def test_a_log_without_end_is_cut_and_no_success(image: Image) -> None:
    """A test that prints for ever would fill the worker's memory; a log that was cut is not read."""
    noisy = PATCH.replace(b"@@ -1,2 +1,2 @@", b"@@ -1,2 +1,5 @@").replace(
        b"+    return a + b\n",
        b"+    import os\n+    while os.write(2, b'x' * 65536) and a:\n+        a = a - 1 if a > 0 else 400\n+    return a + b\n",
    )
    tests = SweTests(
        framework="pytest",
        command=f"{PYTEST} -s t.py",
        fail_to_pass=("t.py::test_a",),
        files={"t.py": b"import calc\n\n\ndef test_a():\n    calc.add(400, 1)\n"},
        env={**QUICK, "PYTHONPATH": "."},
        timeout_s=60,
    )
    async with image({"calc.py": BAD}) as (sandbox, folder):
        found = await evaluate(sandbox, RepositorySource(folder=folder), tests, noisy)

    assert (found.resolved, found.reason, found.log_was_cut) == (False, "log_too_long", True), told(found)
