"""What walls keep in and what they keep out. The attacks here are the plain ones: what an agent does by mistake, or tries once."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.kinds import Kind
from tests.sandbox_ground import image_folder
from workers.sandbox import Sandbox, SandboxProvider, SandboxSpec
from workers.sandbox.shell_session import MAX_WORD_BYTES

LONG = f"  # {'x' * MAX_WORD_BYTES}"
"""Makes a command one that goes in by a file; a short one goes in by the terminal."""


def glance(folder: Path) -> list[tuple[str, int, int, int]]:
    """Names, sizes, modes and times of an image's first three levels: any change of it shows in one of its folders."""
    found = []
    for path, names, files in os.walk(folder):
        if path.count("/") - str(folder).count("/") >= 2:
            names.clear()
        for name in (*names, *files):
            at = os.lstat(os.path.join(path, name))
            found.append((os.path.join(path, name), at.st_size, at.st_mode, at.st_mtime_ns))
    return sorted(found)


async def test_killing_everything_leaves_the_sandbox_and_a_shell_that_says_it_is_new(walled: Kind, sandbox: Sandbox) -> None:
    """`kill -9 -1` hits the agent's own processes. PID 1 is deaf to it, and what serves the agent is not in there."""
    shell = sandbox.shell()
    await sandbox.write_file("kept", b"kept\n")
    await shell.run("X=lost; sleep 1000 &", timeout_s=10)

    ended = await shell.run("sh -c 'kill -9 -1'; sleep 60", timeout_s=10)
    after = await shell.run("echo x$X; cat kept; ps -eo args= | grep -c 'sleep 100[0]'", timeout_s=10)

    assert (ended.status, ended.exit_code, ended.restarted) == ("closed", 137, True)
    assert (after.status, after.output) == ("ok", "x\nkept\n0\n")
    assert (await sandbox.exec("echo on", timeout_s=10)).stdout == b"on\n"


async def test_pid_1_hears_no_signal_of_the_sandbox(walled: Kind, sandbox: Sandbox) -> None:
    await sandbox.exec("for n in $(seq 1 31); do kill -$n 1; done 2>/dev/null", timeout_s=10)

    assert (await sandbox.exec("echo on", timeout_s=10)).stdout == b"on\n"


async def test_what_was_changed_survives_park_and_is_not_in_the_image(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    image = image_folder()
    assert image is not None
    before = glance(image)
    first = await provider.start(spec, an_owner("job"))
    change = "echo new >/etc/made; rm /etc/debian_version; mkdir -p /opt/x; echo tmp >/tmp/t; echo var >/var/tmp/v; chmod 600 /etc/passwd"
    assert (await first.exec(change, timeout_s=10)).returncode == 0

    handle = await first.park()
    async with await provider.attach(handle, an_owner("job", attempt=2)) as second:
        look = "cat /etc/made /tmp/t /var/tmp/v; ls /etc/debian_version; ls -d /opt/x; stat -c %a /etc/passwd"
        seen = await second.exec(look, timeout_s=10)

    assert seen.stdout == b"new\ntmp\nvar\n/opt/x\n600\n"
    assert glance(image) == before


async def test_two_sandboxes_do_not_see_each_other(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    async with await provider.start(spec, an_owner()) as one, await provider.start(spec, an_owner()) as other:
        await one.exec("echo one | tee /tmp/a /var/tmp/a /workspace/a /a >/dev/null; sleep 1001 &", timeout_s=10)
        await one.shell().run("true", timeout_s=10)

        seen = await other.exec("ls /tmp/a /var/tmp/a /workspace/a /a /run/rollstream/given; ps -eo args=; ls /proc", timeout_s=10)

    assert b"/a\n" not in seen.stdout
    assert b"sleep 1001" not in seen.stdout
    assert b"sh-main" not in seen.stdout


async def test_what_runs_inside_has_no_rights_and_can_get_none(walled: Kind, sandbox: Sandbox) -> None:
    tries = {
        "user namespace": "unshare -U true",
        "mount namespace": "unshare -m true",
        "mount": "mount -t tmpfs none /mnt",
        "host name": "hostname other",
        "priority": "nice -n -20 true 2>&1 | grep -q . && false",
        "device": "mknod /tmp/d b 8 0",
    }
    status = (await sandbox.exec("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status", timeout_s=10)).stdout_text.split()

    for what, command in tries.items():
        assert (await sandbox.exec(command, timeout_s=10)).returncode != 0, what
    values = dict(zip(status[::2], status[1::2], strict=True))
    assert {int(values[f"Cap{kind}:"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert values["NoNewPrivs:"] == "1"
    assert values["Seccomp:"] == "2"


async def test_calls_that_look_into_others_and_odd_sockets_are_refused(walled: Kind, sandbox: Sandbox) -> None:
    """vsock does not care for network namespaces, io_uring for filters; a fork with a namespace is an unshare by another name."""
    program = """
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace(0, 0, 0, 0) != -1 and print('ptrace')
libc.syscall(425, 1, 0) != -1 and print('io_uring')
ctypes.set_errno(0)
libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS or print('clone3')
for family in (40, 38, 17, 21):
    try:
        socket.socket(family, socket.SOCK_DGRAM if family == 17 else socket.SOCK_STREAM)
    except OSError as error:
        error.errno == errno.EAFNOSUPPORT or print('family', family, error)
    else:
        print('family', family)
socket.socketpair(); socket.socket(socket.AF_INET); socket.socket(socket.AF_INET6)
import threading
thread = threading.Thread(target=print, args=('threads',)); thread.start(); thread.join()
"""
    result = await sandbox.exec(["python3", "-c", program], timeout_s=20)

    assert (result.stdout_text, result.stderr_text) == ("threads\n", "")


async def test_there_is_no_network(walled: Kind, sandbox: Sandbox) -> None:
    devices = (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1", timeout_s=10)).stdout_text.split()
    reach = await sandbox.exec("exec 3<>/dev/tcp/192.0.2.1/80", timeout_s=10)

    assert devices == ["lo"]
    assert "unreachable" in reach.stderr_text


async def test_no_descriptor_of_ours_gets_in(walled: Kind, sandbox: Sandbox) -> None:
    # looked at first, sorted out afterwards: a program that starts meanwhile has its libraries open
    look = "seen=$(for p in /proc/[0-9]*; do readlink $p/fd/*; done); grep -vE '^(/dev/|pipe:|socket:|anon_inode|/proc/)' <<<\"$seen\""

    assert (await sandbox.exec(look, timeout_s=10)).stdout_text == ""


async def test_what_is_given_can_be_read_and_not_changed(walled: Kind, sandbox: Sandbox) -> None:
    shell = sandbox.shell()

    result = await shell.run('ls -1 "$__rs_dir"; touch "$__rs_dir/x"; rm -rf "$__rs_dir"; ls -d "$__rs_dir"' + LONG, timeout_s=10)

    assert result.output.startswith("boot.sh\ncommand\n")
    assert result.output.count("Read-only file system") >= 2
    assert result.output.endswith("/run/rollstream/given/sh-main\n")


async def test_a_link_in_place_of_a_shared_folder_is_not_followed(sandbox: Sandbox, place: Path) -> None:
    """Without walls the shell's folder could be replaced by a link, and the text of the next command was written to wherever that led."""
    treasure = place / "treasure"
    treasure.mkdir()
    (treasure / "command").write_text("precious")
    shell = sandbox.shell()
    await shell.run(f'rm -rf "$__rs_dir"; ln -s {treasure} "$__rs_dir"', timeout_s=10)

    with contextlib.suppress(Exception):
        await shell.run("echo anything" + LONG, timeout_s=10)

    assert [path.name for path in treasure.iterdir()] == ["command"]
    assert (treasure / "command").read_text() == "precious"


async def test_a_second_name_of_a_file_is_not_written_through(sandbox: Sandbox, place: Path) -> None:
    """Without walls the file of the commands could be replaced by another name of any file of this user, which was then overwritten."""
    precious = place / "precious"
    precious.write_text("precious")
    shell = sandbox.shell()
    await shell.run(f'ln -f {precious} "$__rs_dir/command"', timeout_s=10)

    with contextlib.suppress(Exception):
        await shell.run("echo anything" + LONG, timeout_s=10)

    assert precious.read_text() == "precious"


@pytest.mark.slow
async def test_a_link_in_place_of_a_kernels_sockets_is_not_followed(sandbox: Sandbox, place: Path) -> None:
    treasure = place / "treasure"
    treasure.mkdir()
    kernel = sandbox.kernel()
    sockets = "/run/rollstream/sockets" if (await sandbox.exec("ls /run/rollstream/sockets", timeout_s=10)).returncode == 0 else ""
    folder = sockets or str(next((place / "run").iterdir()) / "s")
    await kernel.run("1", timeout_s=20)
    await kernel.run(f"import os, shutil; shutil.rmtree('{folder}/main'); os.symlink('{treasure}', '{folder}/main')", timeout_s=20)
    await kernel.restart()

    with contextlib.suppress(Exception):
        await kernel.run("1", timeout_s=20)

    assert list(treasure.iterdir()) == []


async def test_links_in_place_of_mount_points_lead_nowhere_when_the_walls_are_built_again(
    walled: Kind, provider: SandboxProvider, spec: SandboxSpec, place: Path
) -> None:
    """Mounts are made by a process that still sees the node: a link that an attachment left where one goes must not lead it there."""
    treasure = place / "treasure"
    treasure.mkdir()
    first = await provider.start(spec, an_owner("job"))
    plant = "for d in /run /var; do mv $d $d.old && ln -s {} $d; done; rm -rf /workspace; ln -s {} /workspace; chmod 0 /var.old"
    for target in (f"/oldroot{treasure}", str(treasure)):
        await first.exec(plant.format(target, target), cwd="/", timeout_s=10)
    handle = await first.park()

    async with await provider.attach(handle, an_owner("job", attempt=2)) as second:
        assert (await second.exec("touch /tmp/x /var/tmp/x && ls /run/rollstream", cwd="/", timeout_s=10)).stdout == b"given\nsockets\n"

    assert list(treasure.iterdir()) == []


async def test_the_helper_for_files_loads_nothing_of_the_sandbox(walled: Kind, sandbox: Sandbox) -> None:
    """It runs outside of the sandbox's PID namespace: a module of the sandbox's in it would be an agent outside."""
    spy = "open('/tmp/loaded', 'a').write(__name__)\\n"
    library = os.path.dirname(os.__file__)
    folders = f". / {library} {library}/encodings {library}/lib-dynload"
    names = "tarfile encodings/__init__ encodings/idna encodings/cp437 copy bz2 lzma pwd grp _bz2 sitecustomize usercustomize linecache"
    plant = f'for d in {folders}; do mkdir -p $d/encodings; for n in {names}; do printf "{spy}" >$d/$n.py; done; done'
    assert (await sandbox.exec(plant, timeout_s=10)).returncode == 0
    await sandbox.exec("mkdir t; touch t/$'caf\\xe9' t/ü; ln -s x t/l; chown :0 t 2>/dev/null", timeout_s=10)

    await sandbox.download("t", io.BytesIO())
    await sandbox.list("t")
    with contextlib.suppress(Exception):
        await sandbox.read_file("t/none")

    assert (await sandbox.exec("cat /tmp/loaded", timeout_s=10)).stdout == b""


async def test_without_an_image_the_nodes_programs_are_there_and_nothing_else_of_it(
    walled: Kind, provider: SandboxProvider, spec: SandboxSpec, place: Path
) -> None:
    (place / "of-the-node").write_text("x")
    async with await provider.start(replace(spec, image=""), an_owner()) as sandbox:
        look = f"id -un; ls /home /root {place} 2>&1; cat /etc/shadow; touch /usr/x /bin/x; wc -l </etc/passwd"
        result = await sandbox.exec(look, timeout_s=10)
        kernel = await sandbox.kernel().run("import os, sys; print(sys.prefix); os.getcwd()", timeout_s=20)

    assert result.stdout_text.startswith("agent\n")
    assert "of-the-node" not in result.stdout_text
    assert result.stderr_text.count("Read-only file system") == 2
    assert result.stdout_text.endswith("2\n")
    assert (kernel.status, kernel.result) == ("ok", "'/workspace'")


async def test_the_working_folder_is_what_the_spec_says(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    async with await provider.start(replace(spec, workdir="/deep/in"), an_owner()) as sandbox:
        await sandbox.write_file("here", b"")

        assert (await sandbox.exec("pwd; echo $HOME; ls", timeout_s=10)).stdout == b"/deep/in\n/deep/in\nhere\n"
        assert sandbox.workdir == "/deep/in"
