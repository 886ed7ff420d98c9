"""A guest that works against us: it holds up who enters, replaces what we run, plants what hangs whoever reads it. It harms itself only."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import Kind
from workers.sandbox import Sandbox, SandboxError, SandboxFileError, SandboxProvider

STOP_NEWCOMERS = """
import os, signal
stood = set(os.listdir('/proc'))
open('/tmp/watching', 'w').close()
while True:
    for pid in os.listdir('/proc'):
        if pid.isdigit() and pid not in stood:
            try:
                os.kill(int(pid), signal.SIGSTOP)
            except OSError:
                pass
"""


async def test_who_stops_all_that_enter_gets_typed_answers_and_stop_ends_it(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """A process on its way in has the guest's uid and can be stopped by it. The holder waited for it for ever, deaf to its worker's end."""
    await sandbox.write_file("stop.py", STOP_NEWCOMERS.encode())
    await sandbox.exec(
        "for i in 1 2 3; do setsid python3 stop.py & done >/dev/null 2>&1; until [ -e /tmp/watching ]; do :; done", timeout_s=10
    )

    for _ in range(3):
        before = time.monotonic()
        with contextlib.suppress(SandboxError):
            await sandbox.exec("true", timeout_s=1)
        assert time.monotonic() - before < 15
    before = time.monotonic()
    await sandbox.kill()

    assert time.monotonic() - before < 5
    assert (await neighbour.exec("echo on", timeout_s=10)).stdout == b"on\n"


async def test_a_replaced_bash_breaks_its_own_sandbox_only(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """The shell's own program prints a flood where we listen, or nothing at all."""
    shell = sandbox.shell()
    for text in ("#!/bin/sh\\nexec sleep 1000\\n", "#!/bin/sh\\nexec yes x >&2\\n", "#!/bin/cat\\n"):
        await sandbox.exec(
            ["sh", "-c", f"printf '{text}' >/tmp/b; chmod 755 /tmp/b; rm -f /bin/bash /usr/bin/bash; cp /tmp/b /usr/bin/bash"], timeout_s=10
        )
        await shell.close()
        with contextlib.suppress(SandboxError):
            await shell.run("echo hi", timeout_s=3)

    assert (await neighbour.shell().run("echo on", timeout_s=10)).output == "on\n"
    assert (await sandbox.exec(["echo", "on"], timeout_s=10)).stdout == b"on\n"


async def test_start_files_and_preloads_of_the_guest_stay_inside(sandbox: Sandbox) -> None:
    """Start files are not read by what we start; a preload is, as any file of the root, and runs with the guest's rights."""
    plant = (
        "for f in /etc/profile /etc/bash.bashrc ~/.bashrc ~/.bash_profile ~/.profile; do echo 'touch /tmp/read' >>$f; done;"
        "echo /tmp/none.so >/etc/ld.so.preload"
    )
    await sandbox.exec(plant, timeout_s=10)

    shell = await sandbox.shell().run(
        "ls /tmp/read 2>/dev/null; export BASH_ENV=/etc/profile PROMPT_COMMAND='touch /tmp/prompt'; echo on", timeout_s=10
    )
    await sandbox.write_file("kept", b"kept")

    assert shell.output.endswith("on\n")
    assert "/tmp/read" not in shell.output
    assert await sandbox.read_file("kept") == b"kept"


async def test_what_would_hang_a_reader_is_refused(sandbox: Sandbox) -> None:
    """A write lease makes whoever opens the file wait 45 s; a loop of links, a terminal and a socket are no files."""
    hold = "import fcntl, os, signal, time; d = os.open('leased', os.O_RDWR | os.O_CREAT); os.write(d, b'x');"
    hold += "signal.signal(signal.SIGIO, signal.SIG_IGN);"
    hold += "fcntl.fcntl(d, fcntl.F_SETLEASE, fcntl.F_WRLCK); open('ready', 'w').close(); time.sleep(100)"
    await sandbox.exec(
        "ln -s a b; ln -s b a; ln -s /dev/zero zero; ln -s /dev/tty tty; ln -s /proc/self/fd/0 self; mkfifo pipe", timeout_s=10
    )
    await sandbox.exec(["bash", "-c", f'python3 -c "{hold}" >/dev/null 2>&1 & until [ -e ready ]; do :; done'], timeout_s=10)

    before = time.monotonic()
    for path in ("a", "zero", "tty", "self", "pipe", "leased"):
        with pytest.raises(SandboxFileError):
            await sandbox.read_file(path, max_bytes=1000)

    assert time.monotonic() - before < 10


async def test_names_that_are_no_text_are_listed_and_carried(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir n; touch n/$'a\\xff' n/$'b\\n' n/$'c\\e[2J'", timeout_s=10)
    archive = io.BytesIO()

    names = [entry.name for entry in await sandbox.list("n")]
    await sandbox.download("n", archive)
    archive.seek(0)
    await sandbox.upload(archive, "again")

    assert names == ["a\udcff", "b\n", "c\x1b[2J"]
    assert [entry.name for entry in await sandbox.list("again/n")] == names


async def test_a_folder_swapped_for_a_link_while_it_is_walked_leads_nowhere(sandbox: Sandbox, place: Path) -> None:
    """Paths are walked within the guest's own mounts: the worst of a race is a file of the guest's."""
    treasure = place / "treasure"
    treasure.mkdir()
    (treasure / "secret").write_bytes(b"of the node")
    swap = f"mkdir -p w/d; while :; do mv w/d w/e; ln -s {place} w/d; rm w/d; mv w/e w/d; done >/dev/null 2>&1 &"
    await sandbox.exec(swap, timeout_s=10)

    for _ in range(20):
        with contextlib.suppress(SandboxFileError):
            await sandbox.write_file("w/d/treasure/planted", b"planted")
        with pytest.raises(SandboxFileError):
            await sandbox.read_file("w/d/treasure/secret")

    assert [path.name for path in treasure.iterdir()] == ["secret"]


async def test_park_ends_a_guest_that_fights_back(provider: SandboxProvider, kind: Kind, sandbox: Sandbox) -> None:
    fight = "for i in 1 2 3 4; do (trap '' HUP INT TERM QUIT; while :; do (sleep 0.01) & wait; done) & done; trap '' TERM"
    await sandbox.exec(["bash", "-c", fight + " >/dev/null 2>&1"], timeout_s=10)

    before = time.monotonic()
    await sandbox.park()

    assert time.monotonic() - before < 5
