"""The look for what is left can fail: one of each is left on purpose, in the way that is hardest to see, and found."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_in_thread
from tests.sandbox_leftovers import Leftovers
from workers.sandbox.limits import find_cgroups
from workers.sandbox.local.identity import identify

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")

ID = "0123456789-1-abcdef"
DAEMON = "(env -i setsid sh -c '(sleep 600 &) </dev/null >/dev/null 2>&1' &)"
"""Without a mark, a session or a parent that one knows."""
MOUNTS = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x00020000) or libc.mount(sys.argv[1].encode(), b"/mnt", None, 4096, None):
    raise OSError(ctypes.get_errno(), "no namespaces")
print("mounted", flush=True)
time.sleep(600)
"""
ELSEWHERE = """
import ctypes, os, socket, sys, time
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000):
    raise OSError(ctypes.get_errno(), "no namespaces")
inside = socket.socket()
inside.bind(("127.0.0.1", 0))
inside.listen()
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [inside.fileno()])
"""


@pytest.fixture
def look(place: Path) -> Iterator[Leftovers]:
    """On a node of which nothing is left; this very process is its service."""
    (place / "s/sandboxes").mkdir(parents=True)
    (place / "run").mkdir()
    look = Leftovers(place)
    look.is_own(os.getpid())
    with look.adopting():
        assert look.found() == []
        yield look
        for line in look.processes():
            os.kill(int(line.split()[1]), 9)
        wait_in_thread(lambda: not look.processes(), "what was planted has ended")


@contextmanager
def program(text: str, *arguments: str, fds: tuple[int, ...] = ()) -> Iterator[str]:
    command = [sys.executable, "-I", "-S", "-c", text, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=fds) as process:
        assert process.stdout is not None
        said = process.stdout.readline() if not fds else str(process.wait())
        try:
            if process.poll():
                assert process.stderr is not None
                why = process.stderr.read()
                assert "no namespaces" in why, why
                pytest.skip("no user namespaces here")
            yield said
        finally:
            process.kill()


@contextmanager
def bound(path: Path, *, unlinked: bool) -> Iterator[None]:
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(path))
        if unlinked:
            path.unlink()
        yield


def test_a_daemon_that_hides_in_every_way_it_can(look: Leftovers) -> None:
    subprocess.run(["sh", "-c", DAEMON], check=True)

    wait_in_thread(lambda: [line for line in look.found() if "sleep 600" in line], "it is found")


def test_a_mount_that_another_process_sees(look: Leftovers, place: Path) -> None:
    with program(MOUNTS, str(place / "s")):
        assert any(line.startswith("mount /mnt seen by") for line in look.found())


@pytest.mark.parametrize("removed", [False, True])
def test_a_lease_that_the_service_holds(look: Leftovers, place: Path, removed: bool) -> None:
    """Of a folder that was removed, too: the file is there as long as it is held."""
    folder = place / "s/sandboxes" / ID
    folder.mkdir()
    with (folder / "lease").open("w"):
        if removed:
            (folder / "lease").unlink()
            folder.rmdir()
        found = look.found()
        assert any(line.startswith("descriptor") and f"{ID}/lease" in line for line in found)
        assert any(line == f"file s/sandboxes/{ID}" for line in found) is not removed


@pytest.mark.parametrize("path", ["/proc/self/ns/net", "/proc/self/ns/mnt", "/dev/fuse"])
def test_a_namespace_or_a_device_that_the_service_holds(look: Leftovers, path: str) -> None:
    if not os.access(path, os.R_OK):
        pytest.skip(f"{path} cannot be opened here")
    with closing(os.fdopen(os.open(path, os.O_RDONLY))):
        assert any(line.startswith("descriptor") for line in look.found())


def test_a_proxy_that_listens_inside_of_a_network_that_nobody_is_in(look: Leftovers) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs), program(ELSEWHERE, str(theirs.fileno()), fds=(theirs.fileno(),)):
        (inside,) = socket.recv_fds(ours, 1, 1)[1]
        try:
            assert any("of another network" in line for line in look.found())
        finally:
            os.close(inside)


def test_a_socket_that_listens_for_the_network(look: Leftovers) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))):
        assert any("that listens at" in line for line in look.found())


@pytest.mark.parametrize("unlinked", [False, True])
def test_a_socket_below_the_run_folder(look: Leftovers, place: Path, unlinked: bool) -> None:
    with bound(place / "run/left", unlinked=unlinked):
        assert f"socket {place}/run/left" in look.found()


@pytest.mark.parametrize(
    "where", [f"s/sandboxes/{ID}", f"s/sandboxes/.new-{ID}", f"s/sandboxes/.trash-{ID}", f"run/{ID}", "run/p1234", "s/.p1234"]
)
def test_a_folder(look: Leftovers, place: Path, where: str) -> None:
    (place / where).mkdir()

    assert look.found() == [f"file {where}"]


def test_a_control_group_of_a_service_that_has_ended(look: Leftovers) -> None:
    cgroups = find_cgroups()
    if not cgroups.bases:
        pytest.skip("no control groups here")
    with subprocess.Popen(["sleep", "600"]) as service:
        look.is_own(service.pid)
        process = identify(service.pid)
        assert process is not None
        service.kill()
    (base, *_) = cgroups.bases.values()
    left = base.folder.with_name(f"rollstream-{process.pid}-{process.started}-7")
    found: list[str] = []
    try:
        while not found:  # whichever service starts meanwhile on this machine removes it, which is what it is for
            left.mkdir(exist_ok=True)
            found = look.found()
        assert found == [f"cgroup {left}"]
    finally:
        with contextlib.suppress(FileNotFoundError):
            left.rmdir()
        cgroups.close()
