"""Bombs inside real walls, where the watchdog alone bounds a sandbox as a whole: it goes on, its neighbour does not notice, others start.

The same with control groups: `test_walls_in_cgroups.py`. Sizes are small, so that a bound that does not hold harms nobody either.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.contract.sandbox.kinds import WALLED
from tests.integration.sandbox_limits.conftest import OpenProvider, an_owner
from workers.sandbox import Limits
from workers.sandbox.limits import Cgroups
from workers.sandbox.local import LocalSandbox

MIB = 1024**2
LIMITS = Limits(
    memory_bytes=256 * MIB,
    sandbox_memory_bytes=160 * MIB,
    processes=40,
    cpu_s=1,
    disk_bytes=52 * MIB,
    files=1500,
    file_bytes=64 * MIB,
)
SPARE_NUMBERS = 300
EAT_A_LITTLE = "x = bytearray(40 << 20); import time; time.sleep(100)"
HIDE = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # who is not dumpable shows no files and no counts to its like\n"
HOLD_IN_MEMORY = (
    HIDE
    + """
import os, time
held = os.memfd_create("held")
os.sendfile(held, os.open("/dev/zero", os.O_RDONLY), 0, 0)
for _ in range(6): os.write(held, bytes(10 << 20))
again = os.memfd_create("again")
try: os.ftruncate(again, 65 << 20)
except OSError as error: print(error.strerror, flush=True)
for _ in range(6): os.write(again, bytes(10 << 20))
third = os.memfd_create("third")
for _ in range(6): os.write(third, bytes(10 << 20))
time.sleep(100)
"""
)
SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
got = [libc.shmget(0, 16 << 20, 0o1600) for _ in range(20)]
print(sum(number >= 0 for number in got), libc.semget(0, 32000, 0o1600), sum(libc.msgget(0, 0o1600) >= 0 for _ in range(100)))
"""
FORK = "import os, time\nfor _ in range(10):\n    try: os.fork()\n    except OSError: pass\ntime.sleep(10)"
# twelve MiB in each of five: over the bound only if every one of them counts
FILL = "for folder in /workspace /tmp /var/tmp /dev/shm /run/rollstream/sockets; do head -c 12M /dev/zero >$folder/fill; done"
WRITE_ON = HIDE + "import time\nwhile True:\n    open('/workspace/more', 'ab').write(bytes(1 << 20)); time.sleep(0.1)"
HOLD_DELETED = (
    HIDE
    + """
import os, time
for number in range(3):
    file = open("/tmp/gone", "wb"); os.unlink("/tmp/gone"); file.write(bytes(20 << 20)); file.flush(); globals()[f"held{number}"] = file
time.sleep(100)
"""
)


QUEUES = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
wanted = (ctypes.c_long * 8)(0, 10, 256)
made = 0
while made < {most} and library.mq_open(b"/queue%d" % made, 0o102, 0o600, ctypes.byref(wanted)) >= 0:
    made += 1
print(made)
"""
TERMINALS = """
import os
got = 0
try:
    while True: os.openpty(); got += 1
except OSError as error: print(got, error.strerror)
"""
WATCH = """
import ctypes
libc = ctypes.CDLL(None)
got = 0
while libc.inotify_init() >= 0: got += 1
print(got, flush=True)
input()
"""


@pytest.fixture
async def provider_beside(open_provider: OpenProvider) -> AsyncIterator[LocalSandbox]:
    """A sandbox with low bounds. Until the test is over a neighbour of it answers; then another starts."""
    provider = await open_provider(cgroups=Cgroups)
    over = asyncio.Event()

    async def answer(neighbour: LocalSandbox) -> int:
        answers = 0
        while not over.is_set():
            assert (await neighbour.exec("echo well", timeout_s=30)).stdout == b"well\n"
            answers += 1
        return answers

    async with await provider.start(WALLED, an_owner()) as neighbour:
        answering = asyncio.create_task(answer(neighbour), name="neighbour")
        async with await provider.start(replace(WALLED, limits=LIMITS), an_owner()) as sandbox:
            yield sandbox
            assert (await sandbox.exec("echo on", timeout_s=30)).stdout == b"on\n"
        over.set()
        assert await answering > 0
    async with await provider.start(WALLED, an_owner()) as later:
        assert (await later.exec("echo well", timeout_s=30)).stdout == b"well\n"


async def test_memory_of_one_of_many_and_of_nobody(provider_beside: LocalSandbox) -> None:
    """A process over its own bound gets an error; over the sandbox's bound together, the largest end; what is held without being mapped
    and what belongs to no process at all is bounded too."""
    sandbox = provider_beside

    alone = await sandbox.exec(["python3", "-c", "bytearray(300 << 20)"], timeout_s=30)
    together = await sandbox.shell().run(
        f"for i in 1 2 3 4 5 6; do python3 -c '{EAT_A_LITTLE}' & done; wait -n; echo $?; kill $(jobs -p)", timeout_s=30
    )
    unmapped = await sandbox.exec(["python3", "-c", HOLD_IN_MEMORY], timeout_s=30)
    of_nobody = await sandbox.exec(["python3", "-c", SYSTEM_V], timeout_s=30)

    assert alone.stderr_text.splitlines()[-1] == "MemoryError"
    assert "137" in together.output
    assert any("its largest process, python3" in notice for notice in together.notices)
    assert (unmapped.returncode, unmapped.stdout) == (-9, b"File too large\n")
    assert any("its largest process, python3" in notice for notice in unmapped.notices)
    shared, semaphores, queues = map(int, of_nobody.stdout.split())
    assert (shared, semaphores, queues) == (4, -1, 32)


async def test_who_takes_all_watches_and_terminals_leaves_others_theirs(open_provider: OpenProvider) -> None:
    """The kernel counts watches by user, and all sandboxes of a node are of one: a single guest took all 128 that there were. And it has
    some 3,000 terminals for all: who held them left nobody else inside a `script` or a `tmux`."""
    provider = await open_provider(cgroups=Cgroups)
    async with await provider.start(WALLED, an_owner()) as sandbox, await provider.start(WALLED, an_owner()) as neighbour:
        await sandbox.write_file("watch.py", WATCH.encode())
        await sandbox.exec("(sleep 100 | python3 watch.py >out 2>/dev/null &) ; until [ -s out ]; do :; done", timeout_s=30)

        opened = await sandbox.exec(["python3", "-c", TERMINALS], timeout_s=30)
        watched = await neighbour.exec(["python3", "-c", "import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)"], timeout_s=30)

        assert int(await sandbox.read_file("out")) == 32
        assert opened.stdout == b"128 No space left on device\n"
        assert watched.stdout == b"True\n"


async def test_who_takes_all_message_queues_leaves_others_theirs(open_provider: OpenProvider) -> None:
    """The kernel has one account of them for a user: a single guest took the 819,200 bytes, and no other sandbox had a queue."""
    provider = await open_provider(cgroups=Cgroups)
    async with await provider.start(WALLED, an_owner()) as sandbox, await provider.start(WALLED, an_owner()) as neighbour:
        greedy = await sandbox.exec(["python3", "-c", QUEUES.format(most=1000)], timeout_s=30)
        modest = await neighbour.exec(["python3", "-c", QUEUES.format(most=2)], timeout_s=30)

        assert int(greedy.stdout) < 10
        assert int(modest.stdout) == min(2, int(greedy.stdout))  # where nobody is root inside there are none for anybody


async def test_processes_never_have_more_numbers_than_their_namespace_gives_out(provider_beside: LocalSandbox) -> None:
    """Between two looks of the watchdog a bomb would have a thousand; the kernel stops it at the bound of its namespace."""
    sandbox = provider_beside

    bombed = await sandbox.exec(["python3", "-c", FORK], timeout_s=30)
    use = await sandbox.use()

    assert any(notice.startswith("processes: ") for notice in use.notices)
    if tuple(map(int, platform.release().split(".")[:2])) >= (6, 14):  # until then the bound is the machine's
        assert use.enforced["processes"] == "pid_max"
        assert LIMITS.processes <= use.processes_peak < LIMITS.processes + SPARE_NUMBERS
    assert not bombed.timed_out


async def test_disk_in_every_folder_that_can_be_written_and_by_files_without_a_name(provider_beside: LocalSandbox) -> None:
    sandbox = provider_beside

    await sandbox.exec("mkdir /tmp/many; cd /tmp/many; seq 2000 | xargs touch", timeout_s=30)
    await until_noticed(sandbox, "more than its 1,500 files")
    await sandbox.exec("rm -r /tmp/many", timeout_s=30)
    await sandbox.exec(FILL, timeout_s=30)
    await until_noticed(sandbox, "disk: the files of the sandbox take")
    writing = await sandbox.exec(["python3", "-c", WRITE_ON], timeout_s=30)
    await sandbox.exec("rm -f /workspace/* /tmp/fill /var/tmp/fill /dev/shm/fill /run/rollstream/sockets/fill", timeout_s=30)
    holding = await sandbox.exec(["python3", "-c", HOLD_DELETED], timeout_s=60)

    assert (writing.returncode, writing.timed_out) == (-9, False)
    assert (holding.returncode, holding.timed_out) == (-9, False)
    assert any("deleted ones that are still open" in notice for notice in holding.notices)


async def test_output_cpu_and_wall(provider_beside: LocalSandbox) -> None:
    sandbox = provider_beside

    flood = await sandbox.exec("head -c 30000000 /dev/zero", timeout_s=30, max_output_bytes=1000)
    busy = await sandbox.exec("bash -c 'while :; do :; done'; echo $?", timeout_s=30)
    late = await sandbox.exec("sleep 100", timeout_s=0.3)

    assert (flood.returncode, flood.truncated_bytes > 29_000_000, len(flood.stdout) < 2000) == (0, True, True)
    assert busy.stdout_text.strip() in ("137", "152")  # SIGKILL or SIGXCPU: the soft and the hard bound are the same
    assert late.timed_out


async def until_noticed(sandbox: LocalSandbox, words: str) -> None:
    """The test's own time limit bounds this."""
    while not any(words in notice for notice in (await sandbox.use()).notices):
        await sandbox.exec("true", timeout_s=30)
