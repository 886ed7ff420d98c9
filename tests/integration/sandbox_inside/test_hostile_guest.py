"""A guest against its execution server, which has the guest's uid: it cannot look into it, nor end it; what it breaks is its own, typed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import Kind
from workers.sandbox import Isolation, Sandbox, SandboxError, SandboxFileError, SandboxGone, SandboxOwner, SandboxSpec, SandboxStartError
from workers.sandbox.images import ImageLease
from workers.sandbox.inside import server_bundle
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.sandbox import LocalSandbox

OWNER = SandboxOwner(job_id="job", attempt=1, boot_id="boot")
LOOK = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for name in ("mem", "environ", "maps", "fd", "auxv", "syscall", "stack", "map_files", "io", "personality"):
    path = f"/proc/1/{name}"
    try:
        found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
    except OSError:
        continue
    print("read", name, found)
for name in ("cwd", "root", "exe", "fd/0", "fd/61", "ns/mnt"):
    try:
        print("followed", name, os.readlink(f"/proc/1/{name}"))
    except OSError:
        pass
for name in ("mem", "oom_score_adj", "clear_refs", "coredump_filter", "comm"):
    try:
        os.close(os.open(f"/proc/1/{name}", os.O_WRONLY))
    except OSError:
        continue
    print("opened", name)
for call, arguments in {"ptrace": (101, 16, 1, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "kcmp": (312, 1, 1, 0, 0, 0)}.items():
    if libc.syscall(*arguments) != -1:
        print(call)
pidfd = libc.syscall(434, 1, 0)
for number in range(64):
    if libc.syscall(438, pidfd, number, 0) != -1:
        print("took descriptor", number)
print("done", open("/proc/1/status").read().count("Name:\\trs-server"))
"""
STOP_SERVERS = """
import os, signal
open("/tmp/watching", "w").close()
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                with open(f"/proc/{name}/comm") as file:
                    if file.read() == "rs-server\\n":
                        os.kill(int(name), signal.%s)
            except OSError:
                pass
"""


async def on(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo on", timeout_s=20)).stdout == b"on\n"


async def test_nothing_of_the_server_can_be_seen_or_changed(sandbox: LocalSandbox) -> None:
    seen = await sandbox.exec(["python3", "-c", LOOK], timeout_s=20)

    assert (seen.stdout_text, seen.stderr_text) == ("done 1\n", "")


async def test_there_is_no_second_way_in_and_no_token_to_find(sandbox: LocalSandbox) -> None:
    look = "ls -A /run/rollstream/sockets; grep -c 00010000 /proc/net/unix; ls /run/rollstream/given"
    seen = (await sandbox.exec(look, timeout_s=20)).stdout_text.splitlines()

    assert seen[0] == "0"  # sockets that listen; and before it no name
    assert set(seen[1:]) == {"kernel_boot.py", server_bundle().name}
    assert list(sandbox.folder.sockets.iterdir()) == []


async def test_it_hears_no_signal_but_of_its_children(sandbox: LocalSandbox) -> None:
    await sandbox.exec("for n in $(seq 1 64); do kill -$n 1; done 2>/dev/null; for n in $(seq 500); do kill -CHLD 1; done", timeout_s=20)

    await on(sandbox)


async def test_who_stops_what_is_on_its_way_holds_nothing_up(sandbox: LocalSandbox) -> None:
    """A forked child has the guest's uid before it is a program, and so has what works on files: it is set going again. A program that the
    guest stops is a stopped program."""
    await sandbox.write_file("stop.py", (STOP_SERVERS % "SIGSTOP").encode())
    await sandbox.exec("setsid python3 stop.py >/dev/null 2>&1 & until [ -e /tmp/watching ]; do :; done", timeout_s=20)

    for n in range(5):
        answer = await sandbox.exec(f"echo {n}", timeout_s=0.2)
        await sandbox.write_file("f", b"x" * 1_000_000)

        assert answer.timed_out or answer.stdout == b"%d\n" % n
        assert await sandbox.read_file("f") == b"x" * 1_000_000


async def test_who_kills_what_is_on_its_way_gets_typed_answers(sandbox: LocalSandbox) -> None:
    await sandbox.write_file("stop.py", (STOP_SERVERS % "SIGKILL").encode())
    await sandbox.exec("setsid python3 stop.py >/dev/null 2>&1 & until [ -e /tmp/watching ]; do :; done", timeout_s=20)

    codes = set()
    for _ in range(10):
        codes.add((await sandbox.exec("true", timeout_s=20)).returncode)
        with contextlib.suppress(SandboxError):
            await sandbox.read_file("stop.py")

    assert codes <= {0, -signal.SIGKILL}
    sandbox.check_open()


async def test_a_server_without_its_python_goes_on_and_the_next_says_what_it_lacks(sandbox: LocalSandbox, provider: LocalSandboxes) -> None:
    spoil = (
        "cd /usr/lib/python3*/ && for f in traceback.py linecache.py tarfile.py codecs.py copy.py ntpath.py json/*.py encodings/*.py; do "
        'echo \'open("/tmp/loaded", "w")\' >$f; done; rm -rf __pycache__ */__pycache__ lib-dynload /usr/bin/python3*'
    )
    await sandbox.exec(spoil, cwd="/", timeout_s=60)

    await on(sandbox)
    assert (await sandbox.shell().run("echo shell", timeout_s=20)).output == "shell\n"
    await sandbox.write_file("deep/f", b"x")
    await sandbox.download("deep", io.BytesIO())
    with pytest.raises(SandboxFileError):
        await sandbox.read_file("none")
    assert [entry.name for entry in await sandbox.list("/tmp") if entry.name == "loaded"] == []
    handle = await sandbox.park()
    with pytest.raises(SandboxGone, match=r"needs python3, 3\.8 or later"):
        await provider.attach(handle, replace(OWNER, attempt=2))


async def test_a_guest_that_is_the_next_server_ends_its_own_sandbox(sandbox: LocalSandbox, provider: LocalSandboxes, place: Path) -> None:
    """Python is the guest's to change. What runs as PID 1 of the next attachment can then be anything: here one that greets, then lies."""
    lies = """
import os, socket, struct, sys
hold = socket.socket(fileno=61)
token = hold.recv(32)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[-1])
listener.listen(1)
os.write(60, b"r")
control, _ = listener.accept()
control.recv(65536)
control.sendall(struct.pack(">HBIi", 4, 17, 0, 1))
control.recv(65536)
control.sendall(struct.pack(">HBIi", 4, 18, 77, 1))
while hold.recv(1):
    pass
"""
    await sandbox.write_file("/lies.py", lies.encode())
    await sandbox.write_file("/new", b'#!/bin/sh\nexec /real -I -S /lies.py "$@"\n', executable=True)
    assert (await sandbox.exec("p=$(readlink -f /usr/bin/python3); cp $p /real; mv -f /new $p", timeout_s=20)).returncode == 0
    handle = await sandbox.park()

    liar = await provider.attach(handle, replace(OWNER, attempt=2))

    with pytest.raises(SandboxGone, match="broke the protocol"):
        await liar.exec("echo hi", timeout_s=20)
    assert "broke the protocol" in await liar.wait_gone()
    await liar.kill()
    assert not sandbox.folder.path.exists()


async def test_who_takes_the_servers_descriptors_away_ends_typed(sandbox: LocalSandbox) -> None:
    """Limits of a process can be lowered by others of its user."""
    await sandbox.exec("prlimit --pid 1 --nofile=5:5 --fsize=1:1", timeout_s=20)

    with pytest.raises((SandboxError, SandboxGone)):
        await sandbox.exec("echo hi", timeout_s=20)


async def test_where_no_process_can_be_had_calls_fail_and_the_server_goes_on(sandbox: LocalSandbox) -> None:
    await sandbox.exec("prlimit --pid 1 --nproc=0:", timeout_s=20)

    with pytest.raises(SandboxError, match="no command can be started"):
        await sandbox.exec("echo hi", timeout_s=20)
    with pytest.raises(SandboxError, match="no process for the sandbox's files"):
        await sandbox.list(".")

    sandbox.check_open()


async def test_pid_1_that_is_killed_from_outside_is_the_end_and_no_command_s(sandbox: LocalSandbox) -> None:
    running = asyncio.create_task(sandbox.exec("sleep 60", timeout_s=60))
    await on(sandbox)
    assert sandbox.keeper is not None

    os.kill(sandbox.keeper.pid, signal.SIGKILL)

    with pytest.raises(SandboxGone):
        await running
    assert await sandbox.wait_gone()


async def test_cancelled_calls_leave_nothing_running(sandbox: LocalSandbox) -> None:
    """Cancelled at many moments of its way: before it was asked for, while it starts, while it runs."""
    for steps in range(0, 40, 2):
        call = asyncio.create_task(sandbox.exec("sleep 1003", timeout_s=60))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    wait = "until ! ps -eo args= | grep -q 'sleep 100[3]'; do :; done"
    assert (await sandbox.exec(wait, timeout_s=20)).returncode == 0


class Bare:
    """An image without anything in it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def lease(self, name: str) -> ImageLease:
        return ImageLease(name=name, digest="0" * 64, root=self._root, env={}, workdir="", descriptor=os.open(self._root, os.O_RDONLY))


async def test_an_image_without_python_is_refused_with_what_helps(kind: Kind, place: Path) -> None:
    root = place / "image"
    (root / "bin").mkdir(parents=True)
    (root / "bin/bash").touch(mode=0o755)
    made = kind.open(place)
    assert isinstance(made, LocalSandboxes)
    made._images = Bare(root)
    async with made as provider:
        with pytest.raises(SandboxStartError, match=r"needs python3, 3\.8 or later.*sandbox\.entry = outside") as caught:
            await provider.start(SandboxSpec(isolation=Isolation.ISOLATED, image="bare"), OWNER)

    assert not caught.value.retryable


async def test_files_of_a_sandbox_whose_server_is_killed_are_gone_and_not_broken(sandbox: LocalSandbox) -> None:
    """The socket of an operation closes before anybody has heard that PID 1 has ended: for a moment the sandbox seemed to be there."""
    reads = [asyncio.create_task(sandbox.read_file("/dev/null")) for _ in range(3)]
    assert sandbox.keeper is not None

    os.kill(sandbox.keeper.pid, signal.SIGKILL)
    outcomes = await asyncio.gather(*reads, sandbox.list("."), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} <= {SandboxGone, SandboxFileError}
    assert isinstance(outcomes[-1], SandboxGone)
    assert "PID 1 of it was killed" in await sandbox.wait_gone()


async def test_what_works_on_files_holds_nothing_of_the_server_and_hides_nothing(sandbox: LocalSandbox) -> None:
    """It is a copy of the server, with all that the server has open. The watchdog ends in a sandbox what it cannot look into: a long upload
    would be ended with it."""
    assert sandbox.keeper is not None
    pipe, feed = os.pipe()
    with os.fdopen(pipe, "rb") as slow:
        with os.fdopen(feed, "wb") as feeding:
            upload = asyncio.create_task(sandbox.upload(slow, "x"))
            feeding.write(bytes(512))
            feeding.flush()
            server = psutil.Process(sandbox.keeper.pid)
            await wait_until(lambda: [name for child in server.children() for name in _open(child.pid)], "it can be looked into")

            (worker,) = server.children()
            assert [name for name in _open(worker.pid) if name != "/dev/null"] == [os.readlink(f"/proc/{worker.pid}/fd/3")]

        with contextlib.suppress(SandboxFileError):
            await upload


def _open(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    return []
