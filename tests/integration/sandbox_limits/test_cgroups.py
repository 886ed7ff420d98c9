"""Control groups as the kernel gives them here: needs a group that this user may write, as root may, and others where it is delegated."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from workers.sandbox.limits import Cgroups, SandboxCgroup, find_cgroups
from workers.sandbox.spec import Limits

LIMITS = Limits(sandbox_memory_bytes=48 * 1024 * 1024, processes=20)
JOIN = """
import os, time
for entry in {entries!r}:
    with open(entry, "w") as file: file.write("0")
"""
EAT = """
memory = bytearray(200 << 20)
for at in range(0, len(memory), 4096): memory[at] = 1
"""
FORK = """
for _ in range(60):
    try: child = os.fork()
    except BlockingIOError: os._exit(11)
    if not child: time.sleep(60); os._exit(0)
"""


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    found = find_cgroups()
    if not {"memory", "pids"} <= found.bases.keys():
        pytest.skip(f"no control groups that this user may make: {found.missing}")
    yield found
    found.close()
    assert not any(controller.folder.exists() for controller in found.bases.values())


@pytest.fixture
def group(cgroups: Cgroups) -> Iterator[SandboxCgroup]:
    made = cgroups.make("0123456789-1-abcdef", LIMITS)
    assert made is not None
    yield made
    for controller in made.controllers.values():
        for pid in (controller.folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    while not made.remove():  # what was killed is gone in milliseconds; the test's own time limit bounds this
        os.sched_yield()


async def run_in(group: SandboxCgroup, program: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", JOIN.format(entries=group.entries) + program)
    return await process.wait()


async def test_the_kernel_holds_a_group_to_its_memory(group: SandboxCgroup) -> None:
    assert await run_in(group, EAT) == -signal.SIGKILL
    assert group.events().memory_kills >= 1


async def test_the_kernel_holds_a_group_to_its_processes(group: SandboxCgroup) -> None:
    assert await run_in(group, FORK) == 11
    assert group.events().refused_forks >= 1


async def test_cpu_time_of_what_has_ended_is_counted(group: SandboxCgroup) -> None:
    assert await run_in(group, "began = time.process_time()\nwhile time.process_time() < began + 0.3: pass") == 0

    counted = group.cpu_s()

    assert counted is None or counted >= 0.2
