"""A bomb in a sandbox ends processes of that sandbox, and the sandbox goes on. Bounds of one process hold should the watchdog fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from workers.sandbox import Isolation, Limits, Sandbox, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

MIB = 1024**2
LIMITS = Limits(memory_bytes=400 * MIB, sandbox_memory_bytes=300 * MIB, processes=48, sandbox_cpu_s=3, cpu_s=20)


@pytest.fixture
async def sandbox(place: Path) -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(isolation=Isolation.NONE, limits=LIMITS)
    async with LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here") as provider:  # noqa: SIM117  # two ends
        async with await provider.start(spec, SandboxOwner(job_id="run:1", attempt=1, boot_id="boot")) as sandbox:
            yield sandbox


async def test_memory_of_many_small_processes_is_bounded_together(sandbox: Sandbox) -> None:
    eat = "python3 -c 'import time; x = bytearray(40 << 20); time.sleep(20)'"

    result = await sandbox.exec(f"for i in $(seq 12); do {eat} & done; wait -n; echo $?", timeout_s=15)

    assert result.stdout_text.strip() == "137"
    assert (await sandbox.exec("echo well", timeout_s=10)).stdout == b"well\n"


async def test_who_has_no_cpu_time_left_is_ended_and_the_sandbox_answers(sandbox: Sandbox) -> None:
    result = await sandbox.exec("bash -c 'while :; do :; done'; echo $?", timeout_s=60)

    assert (result.stdout_text.strip(), result.timed_out) == ("137", False)
