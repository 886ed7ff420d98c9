"""The layers that are mounted for Apptainer: seen by what runs on them alone, gone with it, and never written below."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sandbox_apptainer.conftest import StartSandbox
from tests.integration.sandbox_apptainer.test_probe import why_on
from workers.sandbox import Sandbox
from workers.sandbox.local import sweep
from workers.sandbox.local.folder import SandboxFolder
from workers.sandbox.local.holder import overlaying
from workers.sandbox.local.identity import identify, is_running
from workers.sandbox.local.teardown import mounted_processes, mounts_below, survivors


def folder_of(sandbox: Sandbox) -> SandboxFolder:
    return SandboxFolder.open(Path(sandbox.handle.folder))


def mounted_layers(pid: int, folder: SandboxFolder) -> list[str]:
    """Where a process sees the layers of a sandbox mounted."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4] == str(folder.path / "merged")]


def is_keeper(pid: int) -> bool:
    return b"rollstream-keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_the_layers_are_seen_by_what_builds_the_walls_and_are_gone_with_it(start: StartSandbox) -> None:
    sandbox = await start()
    folder = folder_of(sandbox)
    launcher = int(folder.children_file.read_text().split()[0])
    holder = folder.state().holder
    assert holder is not None
    assert mounted_layers(launcher, folder) == [str(folder.path / "merged")]  # else the rest of this shows nothing
    assert mounted_layers(holder.pid, folder) == []
    assert mounts_below(folder.path) == ()
    assert os.listdir(folder.path / "merged") == []

    handle = await sandbox.park()

    assert survivors(folder) == []
    assert mounted_processes(folder) == []
    assert os.listdir(Path(handle.folder, "merged")) == []


async def test_layers_that_a_killed_holder_left_are_found_by_the_sweep(start: StartSandbox, place: Path) -> None:
    """Apptainer mostly does not follow its holder (only where Go happened to become the program on its first thread), and PID 1 cannot
    while it stands still: with both the layers stay mounted."""
    sandbox = await start()
    folder = folder_of(sandbox)
    launcher = identify(int(folder.children_file.read_text().split()[0]))
    holder = folder.state().holder
    assert launcher is not None
    assert holder is not None
    keeper = next(process for process in mounted_processes(folder) if is_keeper(process.pid))

    os.kill(keeper.pid, signal.SIGSTOP)
    os.kill(holder.pid, signal.SIGKILL)
    await sandbox.wait_gone()
    report = await sweep(place / "scratch", lambda owner: False)

    assert report.failed == ()
    assert mounted_processes(folder) == []
    assert not is_running(launcher)


async def test_a_folder_of_the_image_cannot_be_reached_but_through_its_layers(start: StartSandbox, debian: Path) -> None:
    """With `--writable` Apptainer would write to the very folder it is given."""
    sandbox = await start()
    inode = os.stat(debian / "etc/issue").st_ino

    found = await sandbox.exec(
        "mount -o remount,bind,rw / ; mount --bind / /mnt; find / -xdev -path /proc -prune -o -inum "
        f"{inode} -name issue -print; for p in /proc/[0-9]*; do ls $p/root/etc/issue $p/cwd; done; cat /proc/self/mountinfo",
        timeout_s=30,
    )
    await sandbox.exec("printf changed | tee /etc/issue /usr/bin/git; chmod 777 / /etc; ln /etc/issue /etc/issue2", timeout_s=10)

    assert str(debian) not in found.stdout_text
    assert (debian / "etc/issue").stat().st_nlink == 1
    assert (debian / "etc/issue").read_bytes() != b"changed"
    assert (debian / "usr/bin/git").stat().st_size > 1000
    assert (debian / "etc").stat().st_mode & 0o777 == 0o755


def test_a_node_that_refuses_the_overlay_is_named_with_what_helps(place: Path, program: Path) -> None:
    """A scratch folder that is itself on an overlay, as in most containers, cannot have another above."""
    for folder in ("lower", "upper", "work", "scratch"):
        (place / folder).mkdir()
    options = f"userxattr,lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    as_ourselves = f"unshare --user --map-user={os.getuid()} --map-group={os.getgid()}"
    script = f'mount -t overlay overlay -o {options} {place}/scratch && exec {as_ourselves} "$@"'
    node = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]

    why = why_on(node, place / "scratch", program)

    assert f"an overlay on {place}/scratch is refused: an overlay with userxattr: " in why
    assert "set ROLLSTREAM_SANDBOX_SCRATCH_DIR to another disk, or use a kernel of 5.11 or later" in why


@pytest.mark.parametrize("sign", [":", ",", "\\", " ", "ü"])
def test_no_sign_in_a_path_means_anything_to_the_kernel(place: Path, sign: str) -> None:
    """In the options of a mount a colon begins another layer, a comma another option: images are named by people."""
    lower, upper, _, at = folders = [place / f"{name}{sign}upperdir=x" for name in ("lower", "upper", "work", "at")]
    for folder in folders:
        folder.mkdir()
    (lower / "kept").mkdir()
    change = f"cd '{at}' && rmdir kept && echo new >kept && cat kept /proc/self/status && grep ' {place}' /proc/self/mounts"

    command = [sys.executable, "-I", "-S", overlaying.__file__, *map(str, folders), "sh", "-c", change]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode == 0, done.stderr
    assert (upper / "kept").read_text() == "new\n"
    assert (lower / "kept").is_dir()
    assert "CapEff:\t0000000000000000" in done.stdout
    assert str(lower) not in done.stdout


def test_a_folder_that_is_not_there_is_said(place: Path) -> None:
    command = [sys.executable, "-I", "-S", overlaying.__file__, *(str(place / name) for name in ("l", "u", "w", "m")), "true"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    assert (done.returncode, done.stderr.strip()) == (1, "No such file or directory")
