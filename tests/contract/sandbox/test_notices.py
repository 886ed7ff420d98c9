"""A command that is ended for a bound of its sandbox has the reason in its own answer, and the sandbox's use says what bounds it."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.sandbox.conftest import an_owner
from workers.sandbox import Limits, SandboxProvider, SandboxSpec
from workers.tools import BashTool

MIB = 1024**2
EAT = "python3 -c 'import time; x = bytearray(250 << 20); time.sleep(20)'"


async def test_a_model_reads_what_its_command_was_killed_for(provider: SandboxProvider, spec: SandboxSpec) -> None:
    small = replace(spec, limits=Limits(sandbox_memory_bytes=160 * MIB))
    async with await provider.start(small, an_owner()) as sandbox:
        answer = await BashTool(sandbox.shell())({"command": EAT}, timeout_s=15)
        after = await sandbox.exec("echo well", timeout_s=10)
        use = await sandbox.use()

    *_, notice, fate = answer.text.splitlines()
    assert notice.startswith("[memory: the sandbox ")
    assert fate == f"[Exit code 137. Working directory: {sandbox.workdir}]"
    assert (after.stdout, after.notices) == (b"well\n", ()), "a notice is told once"
    assert use.notices == (notice.strip("[]"),)
    assert use.enforced["memory"] != "nothing"
    assert use.cpu_s > 0
