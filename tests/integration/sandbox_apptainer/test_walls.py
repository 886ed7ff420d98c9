"""What Apptainer would let in or leave out by itself, and does not here. Beside the contract, which holds for all backends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.sandbox_apptainer.conftest import StartSandbox
from workers.sandbox import Sandbox, SandboxSpec, SandboxStartError
from workers.sandbox.apptainer import ApptainerBackend
from workers.sandbox.local.backend import Place
from workers.sandbox.local.environment import MARK


async def said(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command, timeout_s=20)
    assert result.returncode == 0, result.stderr_text
    return result.stdout_text


async def test_more_fits_than_the_64_mib_of_a_temporary_overlay(start: StartSandbox) -> None:
    """`--writable-tmpfs` and the /tmp of `--containall` are 64 MiB of memory: builds died there. Ours are folders on the node's disk."""
    sandbox = await start()

    sizes = await said(sandbox, "for place in / /tmp /var/tmp; do head -c 80M /dev/zero >$place/big && stat -c %s $place/big; done")

    assert sizes.split() == [str(80 * 1024 * 1024)] * 3


async def test_nothing_of_the_worker_s_environment_gets_in_by_apptainer_s_own_ways(
    start: StartSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `--cleanenv` says, Apptainer hands on proxies, with their passwords, and every `APPTAINERENV_NAME`."""
    for name in ("http_proxy", "HTTPS_PROXY", "APPTAINERENV_STOLEN", "SINGULARITYENV_STOLEN", "APPTAINER_BIND", "SINGULARITY_BIND"):
        monkeypatch.setenv(name, "/var/lib" if name.endswith("_BIND") else "http://user:password@proxy")
    sandbox = await start()

    of_programs = await said(sandbox, "env")
    of_pid_1 = (await said(sandbox, "tr '\\0' '\\n' </proc/1/environ")).splitlines()

    assert "password" not in of_programs
    assert {line.partition("=")[0] for line in of_pid_1} == {"PATH", "LANG", MARK, "SHLVL"}


async def test_no_folder_of_the_user_or_the_site_is_there(start: StartSandbox, debian: Path) -> None:
    """By default a container has the user's home, the working directory, /tmp and what the site adds: an `rm -rf /*` took them."""
    sandbox = await start()

    assert (await said(sandbox, f"ls -A {Path.home()} 2>/dev/null || true")) == ""
    assert (await said(sandbox, f"ls -A {Path.cwd()} 2>/dev/null || true")) == ""
    assert (await said(sandbox, "ls -A /sys /tmp /workspace; ls -A /home")).split() == ["/sys:", "/tmp:", "/workspace:"]
    mounts = [line.split()[1] for line in (await said(sandbox, "cat /proc/mounts")).splitlines()]
    assert {point for point in mounts if not point.startswith(("/dev", "/run/rollstream"))} <= {
        "/", "/proc", "/proc/sys", "/tmp", "/var/tmp", "/etc/hostname",
    }  # fmt: skip


async def test_pid_1_is_the_keeper_and_holds_no_descriptor_but_its_own(start: StartSandbox) -> None:
    """Apptainer hands on every open descriptor of whoever starts it, and leaves one of its own in PID 1."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        sandbox = await start()
        held = await said(sandbox, "readlink /proc/1/fd/*")
    finally:
        os.close(read)
        os.close(write)

    assert [target.split(":")[0] for target in sorted(set(held.split()))] == ["/dev/null", "socket"]  # the socket: the end of its holder
    assert "rollstream-keeper" in (await said(sandbox, "tr '\\0' ' ' </proc/1/cmdline"))
    assert (await said(sandbox, "ls -d /proc/[0-9]* | wc -l")).strip() in {"3", "4"}  # PID 1, the shell, ls and wc: nobody else's


async def test_files_of_the_image_can_be_changed_and_the_image_does_not_change(start: StartSandbox, debian: Path) -> None:
    """A file of somebody else's in an image could only be read, whatever lies above it: images belong to who runs them."""
    sandbox = await start()
    before = (debian / "etc/debian_version").read_text()

    assert (
        await said(sandbox, "echo changed >/etc/debian_version; rm /usr/bin/git; cat /etc/debian_version; ls /usr/bin/git || true")
        == "changed\n"
    )

    assert (debian / "etc/debian_version").read_text() == before
    assert (debian / "usr/bin/git").exists()


async def test_an_image_without_python_has_a_shell_all_the_same(start: StartSandbox, few_programs: Path) -> None:
    sandbox = await start(few_programs)

    await sandbox.write_file("note", b"by us")
    result = await sandbox.shell().run("cat note; cd /; ls -d work*", timeout_s=10)

    assert result.output == "by usworkspace\n"


async def test_a_setuid_installation_takes_no_configuration_of_ours_and_its_walls_are_the_same(start: StartSandbox, program: Path) -> None:
    """Its flags have to be enough: a site's own configuration mounts the home, /tmp, /sys and whatever else."""
    sandbox = await start(backend=ApptainerBackend(program, own_configuration=False))

    assert (await said(sandbox, f"ls -A {Path.home()} 2>/dev/null; ls -A /sys /tmp")).split() == ["/sys:", "/tmp:"]
    assert (await said(sandbox, "cat /proc/net/dev")).count(":") == 1  # loopback


async def test_without_an_image_the_node_s_programs_serve_read_only(start: StartSandbox) -> None:
    sandbox = await start(None)

    result = await sandbox.exec("touch /usr/bin/mine", timeout_s=10)
    assert (result.returncode, "Read-only file system" in result.stderr_text) == (1, True)
    assert (await said(sandbox, "echo data >/etc/mine; cat /etc/mine; ls -A /home 2>/dev/null || true")) == "data\n"


async def test_a_path_that_apptainer_would_take_for_something_else_is_refused(place: Path, program: Path) -> None:
    """`--bind` takes `SOURCE:TARGET:OPTIONS,SOURCE...`: a folder with such a sign in its name would be mounted as something else."""
    odd = place / "a:b"
    here = Place(folder=odd, given=odd / "g", sockets=odd / "s", workdir="/workspace")

    with pytest.raises(SandboxStartError, match=r"cannot be given the path .*a:b"):
        ApptainerBackend(program).command(here, SandboxSpec(), place, ["bash"])
