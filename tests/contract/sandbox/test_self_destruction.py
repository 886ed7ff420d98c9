"""An agent that ends every process and removes every file it can see loses its own sandbox's contents, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.kinds import Kind
from tests.contract.sandbox.tools import calls
from tests.sandbox_ground import image_folder
from workers.sandbox import Sandbox, SandboxError, SandboxProvider
from workers.tools import tools_called

ORDERS = {
    "processes by name": "pkill -9 python; pkill -9 bash; true",
    "all processes": "kill -9 -1",
    "all processes, softly": "kill -TERM -1; kill -KILL -1",
    "PID 1": "kill -9 1; kill -TERM 1; sleep 0.1; echo still",
    "all files": "rm -rf --no-preserve-root / 2>/dev/null; echo gone",
    "everything": "pkill -9 python; (sleep 0.1; kill -9 -1) & rm -rf --no-preserve-root / 2>/dev/null; kill -9 -1",
    "its own devices": "rm -rf /dev/* /proc/* /run/* /tmp/* 2>/dev/null; exec 2>&- >&- <&-",
}


def fingerprint(folder: Path) -> tuple[int, int]:
    """Entries and bytes below a folder."""
    entries = size = 0
    for at, folders, files in os.walk(folder):
        entries += len(folders) + len(files)
        size += sum(os.lstat(os.path.join(at, name)).st_size for name in files)
    return entries, size


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
async def test_nothing_is_lost_but_the_contents_of_the_own_sandbox(
    walled: Kind, provider: SandboxProvider, sandbox: Sandbox, order: str
) -> None:
    image = image_folder()
    assert image is not None
    before = fingerprint(image / "usr/bin")
    own = {tool.name: calls(tool) for tool in tools_called(("bash", "python"), sandbox)}
    async with await provider.start(walled.spec, an_owner()) as other:
        neighbour = {tool.name: calls(tool) for tool in tools_called(("bash", "python"), other)}
        await neighbour["bash"](command="X=kept; echo mine > file; sleep 95 &")
        await neighbour["python"](code="x = 'kept'")
        await own["python"](code="x = 1")

        answer = await own["bash"](command=ORDERS[order], timeout=20)
        assert answer.details["status"] in ("ok", "closed", "timeout")
        for name, argument in (("bash", {"command": "echo on", "timeout": 10}), ("python", {"code": "1 + 1"})):
            try:
                again = await own[name](**argument)
            except SandboxError:
                continue  # typed: the job ends as one whose sandbox broke under its agent
            assert again.details["status"] in ("ok", "error", "closed", "kernel_died", "timeout")

        assert (await neighbour["bash"](command="echo $X $(cat file) $(jobs -r | wc -l)")).text.startswith("kept mine 1\n")
        assert (await neighbour["python"](code="x")).text == "'kept'"
    async with await provider.start(walled.spec, an_owner()) as new:
        assert (await new.exec("git --version && ls /usr/bin | wc -l", timeout_s=20)).returncode == 0
    assert fingerprint(image / "usr/bin") == before


async def test_a_cell_that_kills_everything_loses_its_python_and_the_next_has_one(walled: Kind, sandbox: Sandbox) -> None:
    python = calls(tools_called(("python",), sandbox)[0])
    await python(code="x = 1")

    died = await python(code="import os\ntry: os.kill(-1, 9)\nexcept ProcessLookupError: pass\nos.kill(os.getpid(), 9)")
    after = await python(code="'x' in globals()")

    assert died.details["status"] == "kernel_died"
    assert "All variables are lost" in died.text
    assert after.text.endswith("False")
