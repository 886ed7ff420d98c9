"""Whoever works with a sandbox hears what its limits did: the model in the answer of its call, a worker in the sandbox's use, a person in
what `rollstream sandbox show` prints. By a sandbox of this process and by the node service alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ops.sandbox_view import as_map, as_text
from workers.sandbox import Isolation, Limits, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import RemoteSandboxes, served_here
from workers.tools import BashTool, PythonTool

MIB = 1024**2
SMALL = SandboxSpec(isolation=Isolation.NONE, limits=Limits(sandbox_memory_bytes=160 * MIB, sandbox_cpu_s=1))
EAT = "import time; x = bytearray(250 << 20); time.sleep(20)"
OWNER = SandboxOwner(job_id="run:1", attempt=1, boot_id="boot")


@pytest.fixture
async def here(place: Path) -> AsyncIterator[LocalSandboxes]:
    async with LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here") as provider:
        yield provider


@pytest.fixture
async def remote(place: Path) -> AsyncIterator[RemoteSandboxes]:
    local = LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here")
    async with served_here(local, place / "r") as remote:
        yield remote


async def test_a_model_reads_why_its_python_is_gone_and_goes_on(here: LocalSandboxes) -> None:
    async with await here.start(replace(SMALL, limits=Limits(sandbox_memory_bytes=160 * MIB)), OWNER) as sandbox:
        tool = PythonTool(sandbox.kernel())
        killed = await tool({"code": EAT}, timeout_s=15)
        after = await tool({"code": "1 + 1"}, timeout_s=15)

    *_, notice, fate = killed.text.splitlines()
    assert notice.startswith("[memory: the sandbox ")
    assert fate == "[Python has ended. All variables are lost; the next call starts a new one.]"
    assert killed.details["notices"] == [notice.strip("[]")]
    assert after.text.splitlines()[-1] == "2", "a notice is told once"


async def test_through_the_service_a_model_and_a_person_read_the_same(remote: RemoteSandboxes) -> None:
    async with await remote.start(SMALL, OWNER) as sandbox:
        answer = await BashTool(sandbox.shell())({"command": f"python3 -c '{EAT}'"}, timeout_s=15)
        use = await sandbox.use()
        (view,) = await remote.views()
        await sandbox.stop()
        in_the_end = await sandbox.use()

    *_, line, fate = answer.text.splitlines()
    assert line.startswith("[memory: the sandbox ")
    assert fate.startswith("[Exit code 137.")
    assert use.notices == (line.strip("[]"),)
    assert use.enforced["memory"] != "nothing"
    assert use.memory_peak_bytes >= 160 * MIB
    shown = as_text(view)
    assert f"limit met  {use.notices[0]}" in shown
    assert any(text.startswith("enforced   memory: ") for text in shown)
    assert any("sandbox_memory: 160 MiB" in text for text in shown)
    told = orjson.loads(orjson.dumps(as_map(view)))
    assert (told["use"]["notices"], told["limits"]["sandbox_memory_bytes"]) == ([use.notices[0]], 160 * MIB)
    assert in_the_end.notices == use.notices, "asked when it was gone"


async def test_cpu_time_of_earlier_attachments_counts(remote: RemoteSandboxes) -> None:
    """Each attachment began at zero: a sandbox that was parked and attached had its CPU time anew."""
    sandbox = await remote.start(SMALL, OWNER)
    await sandbox.exec(["python3", "-c", "import time\nwhile time.process_time() < 0.7: pass"], timeout_s=15)
    handle = await sandbox.park()
    before = await sandbox.use()

    async with await remote.attach(handle, replace(OWNER, attempt=2)) as attached:
        ended = await attached.exec("while :; do :; done", timeout_s=15)
        use = await attached.use()

    assert before.cpu_s >= 0.7
    assert use.cpu_before_s == before.cpu_s
    assert (ended.returncode, ended.timed_out) == (-9, False)
    assert ended.notices[0].startswith("cpu: the sandbox has used up its 1 seconds of CPU time; killed: bash (pid ")
