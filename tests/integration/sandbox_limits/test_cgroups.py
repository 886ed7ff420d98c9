"""Control groups as the kernel gives them here: needs a group that this user may write, as root may, and others where it is delegated."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.sandbox.limits import Cgroups, SandboxCgroup, find_cgroups
from workers.sandbox.limits.cgroups import Controller, Events, end_groups
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


def is_there(group: Path) -> bool:
    return group.exists()


async def run_in(group: SandboxCgroup, program: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", JOIN.format(entries=group.entries) + program)
    return await process.wait()


async def test_the_kernel_holds_a_group_to_its_memory(group: SandboxCgroup) -> None:
    assert await run_in(group, EAT) == -signal.SIGKILL
    assert group.events().memory_kills >= 1


async def test_the_kernel_holds_a_group_to_its_processes(group: SandboxCgroup) -> None:
    assert await run_in(group, FORK) == 11
    assert group.events().refused_forks >= 1


async def test_counters_that_are_kept_open_tell_what_has_happened_since_and_hold_no_group_up(cgroups: Cgroups) -> None:
    """Each result of a command asks them; a sandbox whose group could not be removed for that would not end."""
    group = cgroups.make("0123456789-2-abcdef", LIMITS)
    assert group is not None
    counters = group.event_counters()
    before = counters.read()
    assert await run_in(group, FORK) == 11

    after = counters.read()

    assert (before.refused_forks, after.refused_forks >= 1) == (0, True)
    assert end_groups("0123456789-2-abcdef", group.paths) == ()
    assert counters.read() == Events()
    counters.close()
    counters.close()
    assert counters.read() == Events()


async def test_cpu_time_of_what_has_ended_is_counted(group: SandboxCgroup) -> None:
    assert await run_in(group, "began = time.process_time()\nwhile time.process_time() < began + 0.3: pass") == 0

    counted = group.cpu_s()

    assert counted is None or counted >= 0.2


@pytest.fixture
def unified() -> Iterator[Path]:
    """A group of version 2 as a sandbox's, wherever one can be made: also where the controllers of memory and processes are version 1's."""
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    mounts = [root for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")) if (root / "cgroup.controllers").exists()]
    if own is None or not mounts:
        pytest.skip("no cgroup v2 here")
    base = mounts[0] / own.lstrip("/") / "rollstream-1-1-0"  # of a process that is no more
    try:
        base.mkdir()
    except OSError as error:
        pytest.skip(f"no group of version 2 that this user may make: {error}")
    group = base / "0123456789-1-abcdef"
    group.mkdir()
    yield group
    assert not base.exists()


async def test_a_group_of_version_2_counts_cpu_time_and_ends_with_all_that_is_in_it(unified: Path) -> None:
    """Its base goes too, as it is of a process that is no more; a group that is not this sandbox's is not touched."""
    group = SandboxCgroup({"cpu": Controller(2, unified)})
    assert await run_in(group, "began = time.process_time()\nwhile time.process_time() < began + 0.2: pass") == 0
    assert (group.cpu_s() or 0) >= 0.15
    program = JOIN.format(entries=group.entries) + "os.fork()\nos.fork()\nprint(flush=True)\ntime.sleep(100)"
    family = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert family.stdout is not None
    for _ in range(4):
        await family.stdout.readline()

    assert await asyncio.to_thread(end_groups, "another", group.paths) == ()
    assert family.returncode is None
    assert is_there(unified)
    assert await asyncio.to_thread(end_groups, unified.name, group.paths) == ()

    assert await family.wait() == -signal.SIGKILL
    assert not is_there(unified)
