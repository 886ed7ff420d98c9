"""Cases of whole gradings: the agent's files in one sandbox, its patch taken out, judged in another, as INIT, RUN and EVAL do it.

A case names its kind of sandbox in `input.sandbox`; without, it runs in the first of `PREFERRED` that works. Behind walls the image has no
pytest: ours is laid beside the repository.
"""

from __future__ import annotations

import io
import secrets
import shlex
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any

from tests.cases.case import BadCase, Case, Check, Difference
from tests.contract.sandbox.kinds import KINDS
from workers.graders.swe import extract_patch
from workers.graders.swe.evaluate import Evaluation, SweTests, evaluate
from workers.graders.swe.repository import RepositorySource, lay_files, prepare_repository
from workers.sandbox import Sandbox, SandboxOwner, SandboxProvider
from workers.sandbox.local.folder import remove_tree

PREFERRED = ("bubblewrap", "apptainer", "process")
KNOWN = frozenset({"resolved", "reason", "tampering", "broken"})
OF_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging")
"""All that pytest is made of, from Python 3.11 on."""
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""The node's own plugins are no part of a case."""


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """One provider a kind of sandbox for all cases."""
    folder = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))  # a short path: sockets live below it
    providers: dict[str, SandboxProvider] = {}
    try:
        async with AsyncExitStack() as stack:

            async def check(case: Case) -> list[Difference]:
                name = case.input.get("sandbox") or next(name for name in PREFERRED if not KINDS[name].why_not())
                if name not in providers:
                    providers[name] = await stack.enter_async_context(KINDS[name].open(folder / name))
                return compare(case, await grade(providers[name], name, case))

            yield check
    finally:
        remove_tree(folder)


def compare(case: Case, found: Evaluation) -> list[Difference]:
    """What is not as the case expects."""
    if unknown := set(case.expect) - KNOWN:
        raise BadCase(f"unknown expectations: {sorted(unknown)}")
    came: dict[str, Any] = {
        "resolved": found.resolved,
        "reason": found.reason,
        "tampering": bool(found.tampering),
        "broken": list(found.verdict.broken) if found.verdict else [],
    }
    told = f"({found.reason}: {found.detail}; {found.tampering}; {found.log[-1500:].decode(errors='replace')})"
    return [Difference(name, value, f"{came[name]} {told}") for name, value in case.expect.items() if came[name] != value]


async def grade(provider: SandboxProvider, kind: str, case: Case) -> Evaluation:
    """The whole way of a repair."""
    given = case.input
    source = RepositorySource(files={path: text.encode() for path, text in given["repo_files"].items()}, folder="repo")
    owner = SandboxOwner(job_id=f"case:{secrets.token_hex(4)}", attempt=1, boot_id="cases")
    async with await provider.start(KINDS[kind].spec, owner) as sandbox:
        repository = await prepare_repository(sandbox, source)
        await lay_files(sandbox, repository.folder, {path: text.encode() for path, text in given["agent_files"].items()})
        script = "\n".join((*(f"rm -rf -- {shlex.quote(path)}" for path in given.get("agent_deletes", ())), given.get("agent_sh", "")))
        done = await sandbox.exec(script, cwd=repository.folder, timeout_s=60)
        if done.returncode != 0:
            raise BadCase(f"the agent's commands failed: {done.stderr_text}")
        patch = await extract_patch(sandbox, repository.folder, repository.base_commit)
    owner = SandboxOwner(job_id=owner.job_id, attempt=2, boot_id="cases")
    async with await provider.start(KINDS[kind].spec, owner) as sandbox:
        return await evaluate(sandbox, source, await _tests(sandbox, kind, given), patch.diff)


async def _tests(sandbox: Sandbox, kind: str, given: dict[str, Any]) -> SweTests:
    python, paths = ("python3", [f"{sandbox.workdir}/pytest"]) if KINDS[kind].walls else (sys.executable, [])
    framework = given.get("framework", "pytest")
    if paths and framework == "pytest":
        await sandbox.upload(io.BytesIO(_pytest()), "pytest")
    env = {**QUICK, **given.get("env", {})}
    env["PYTHONPATH"] = ":".join(filter(None, (*paths, env.get("PYTHONPATH", ""))))
    return SweTests(
        framework=framework,
        command=given["test_cmd"].replace("python ", f"{python} ", 1),
        fail_to_pass=tuple(given["FAIL_TO_PASS"]),
        pass_to_pass=tuple(given["PASS_TO_PASS"]),
        files={path: text.encode() for path, text in given["hidden_test_files"].items()},
        setup=given.get("setup", ""),
        env=env,
        timeout_s=float(given.get("timeout_s", 60)),
    )


@cache
def _pytest() -> bytes:
    """Our pytest as a tar."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for package in OF_PYTEST:
            for path in files(package) or ():
                if (path.suffix == ".py" or path.parent.name.endswith(".dist-info")) and ".." not in path.parts:
                    tar.add(str(path.locate()), arcname=str(path))
    return archive.getvalue()
