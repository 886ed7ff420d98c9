"""The tests and the solution of a task, run in a sandbox as Harbor runs them.

    /tests              the tests; brought in when nothing of the agent runs any more
    /logs/verifier      where `test.sh` writes `reward.txt` or `reward.json`; emptied before
    /solution           the solution, where it is played
    workdir             where both start

A sandbox without walls has no folders at its root that are its own. There these lie below its working directory, that directory stands for
the task's, and the names are replaced in the texts of tests and solution: enough to try a task, nothing to train on.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from workers.graders.harbor.task import SOLUTION_SCRIPT, TEST_SCRIPT, HarborTask, TaskFile
from workers.sandbox.base import Sandbox
from workers.sandbox.errors import SandboxFileError

MAX_REWARD_BYTES = 64 * 1024
MAX_LOG_BYTES = 256 * 1024
OUR_FOLDERS_S = 60.0
"""For making and removing folders."""
_OURS = ("tests", "logs", "solution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the tests left."""

    reward_json: str | None
    reward_txt: str | None
    exit_code: int
    timed_out: bool
    log: str
    took_s: float


class _Names:
    """Where the folders are."""

    def __init__(self, task: HarborTask, sandbox: Sandbox, *, walls: bool) -> None:
        self.root = "" if walls else f"{sandbox.workdir}/.harbor"
        self.workdir = task.workdir if walls else sandbox.workdir
        moved = {} if walls else {f"/{name}": f"{self.root}/{name}" for name in _OURS} | {task.workdir: sandbox.workdir}
        self._moved = moved
        self._name = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, moved))})(?![\w.-])") if moved else None

    def __call__(self, folder: str) -> str:
        return f"{self.root}/{folder}"

    def content(self, content: bytes) -> bytes:
        """A file as it is brought in."""
        if self._name is None:
            return content
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        return self._name.sub(lambda found: self._moved[found[1]], text).encode()


async def verify(sandbox: Sandbox, task: HarborTask, *, timeout_s: float, walls: bool) -> Verified:
    """Brings the tests in, runs them, reads what they left.

    Args:
        walls: whether the sandbox has a root of its own.
    """
    names = _Names(task, sandbox, walls=walls)
    tests, logs = names("tests"), names("logs/verifier")
    try:
        await _run(sandbox, ["rm", "-rf", "--", tests, logs])
        await _run(sandbox, ["mkdir", "-p", "--", logs, names("logs/agent"), names("logs/artifacts"), names.workdir])
        await _bring(sandbox, task.tests, tests, names)
    except SandboxFileError as blocked:  # the agent may have made folders of these names that cannot be removed
        return Verified(reward_json=None, reward_txt=None, exit_code=-1, timed_out=False, log=f"not run: {blocked}", took_s=0.0)
    script = shlex.quote(f"{tests}/{TEST_SCRIPT}")
    result = await sandbox.exec(
        f"exec {script} 2>&1", cwd=names.workdir, env=task.verifier_env, timeout_s=timeout_s, max_output_bytes=MAX_LOG_BYTES
    )
    return Verified(
        reward_json=await _text(sandbox, f"{logs}/reward.json"),
        reward_txt=await _text(sandbox, f"{logs}/reward.txt"),
        exit_code=result.returncode,
        timed_out=result.timed_out,
        log=result.stdout_text,
        took_s=result.took_s,
    )


async def solve(sandbox: Sandbox, task: HarborTask, *, timeout_s: float, walls: bool) -> None:
    """Plays the solution; whether it solved the task the tests say."""
    names = _Names(task, sandbox, walls=walls)
    await _run(sandbox, ["mkdir", "-p", "--", names("logs/agent"), names.workdir])
    await _bring(sandbox, task.solution, names("solution"), names)
    await sandbox.exec([f"{names('solution')}/{SOLUTION_SCRIPT}"], cwd=names.workdir, env=task.solution_env, timeout_s=timeout_s)
    await _run(sandbox, ["rm", "-rf", "--", names("solution")])


async def _bring(sandbox: Sandbox, files: Mapping[str, TaskFile], folder: str, names: _Names) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, file in files.items():
            content = names.content(file.content)
            entry = tarfile.TarInfo(PurePosixPath(path).as_posix())
            entry.size = len(content)
            entry.mode = 0o755 if file.executable or path in (TEST_SCRIPT, SOLUTION_SCRIPT) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    packed.seek(0)
    await sandbox.upload(packed, folder)


async def _run(sandbox: Sandbox, command: list[str]) -> None:
    result = await sandbox.exec(command, timeout_s=OUR_FOLDERS_S)
    if result.returncode != 0:
        raise SandboxFileError(command[-1], "denied", f"{' '.join(command[:2])}: {result.stderr_text.strip()[:200]}")


async def _text(sandbox: Sandbox, path: str) -> str | None:
    try:
        return (await sandbox.read_file(path, max_bytes=MAX_REWARD_BYTES)).decode("utf-8", "replace")
    except SandboxFileError as missing:
        return None if missing.trouble == "not_found" else f"not to be read: {missing}"
