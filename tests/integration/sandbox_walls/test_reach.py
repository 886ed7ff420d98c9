"""What a program inside may look for outside: processes, their environments, files, sockets, descriptors. It finds none of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import Kind
from tests.integration.sandbox_walls.conftest import an_owner
from tests.sandbox_ground import image_folder
from workers.sandbox import Sandbox, SandboxProvider

CALLS = (101, 155, 161, 165, 166, 248, 249, 250, 272, 298, 303, 304, 308, 310, 311, 321, 323, 425, 428, 430, 438)
"""ptrace, pivot_root, chroot, mount, umount2, add_key, request_key, keyctl, unshare, perf_event_open, name_to_handle_at, open_by_handle_at,
setns, process_vm_readv and _writev, bpf, userfaultfd, io_uring_setup, open_tree, fsopen, pidfd_getfd: numbers of x86_64."""
SECRET = "a-secret-of-the-worker-7f3a"

ENVIRONMENTS = f"""
import glob, os
for _ in range(400):
    for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):
        try:
            content = open(path, 'rb').read()
        except OSError:
            continue
        if {SECRET.encode()!r}[:-4] in content and int(path.split('/')[2]) != os.getpid():
            print(path, content)
"""

DESCRIPTORS = """
import os
for number in sorted(map(int, os.listdir('/proc/self/fd'))):
    try:
        where = os.readlink(f'/proc/self/fd/{number}')
    except OSError:
        continue  # the listing's own
    print(number, where)
"""

RACE = """
import os, time
seen, me, stood = set(), os.getpid(), set(os.listdir('/proc'))
print('watching', flush=True)
end = time.monotonic() + 3
while time.monotonic() < end:
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or pid in stood:
            continue
        try:
            for number in os.listdir(f'/proc/{pid}/fd'):
                where = os.readlink(f'/proc/{pid}/fd/{number}')
                if not where.startswith(('/dev/', 'pipe:', 'socket:', '/proc/', '/usr/', '/lib', '/etc/')):  # bash's own libraries
                    seen.add(where)
                if where.startswith('pipe:') or int(number) < 3:
                    continue
                os.stat(f'/proc/{pid}/fd/{number}/')  # a folder of ours would be a way out
                seen.add('folder ' + where)
        except OSError:
            pass
print(sorted(seen))
"""


async def test_no_environment_that_can_be_read_inside_is_ours(
    monkeypatch: pytest.MonkeyPatch, provider: SandboxProvider, kind: Kind
) -> None:
    """Also of those who are entering meanwhile: until they are the program they hold the holder's memory."""
    monkeypatch.setenv("ROLLSTREAM_REDIS_URL", SECRET)
    async with await provider.start(kind.spec, an_owner()) as sandbox:
        shell = sandbox.shell()
        await sandbox.write_file("look.py", ENVIRONMENTS.encode())
        await shell.run("python3 look.py >found 2>&1 &", timeout_s=10)
        for _ in range(20):
            await sandbox.exec("true", timeout_s=10)
        await shell.run("wait", timeout_s=30)

        assert await sandbox.read_file("found") == b""


async def test_who_enters_shows_no_descriptor_of_ours_on_the_way(sandbox: Sandbox) -> None:
    await sandbox.write_file("race.py", RACE.encode())
    shell = sandbox.shell()
    await shell.run("mkfifo started; python3 race.py >race.out 2>&1 & until grep -q watching race.out; do :; done", timeout_s=10)

    for _ in range(30):
        await sandbox.exec("true", timeout_s=10)
    await shell.run("wait", timeout_s=20)

    assert await sandbox.read_file("race.out") == b"watching\n[]\n"


async def test_commands_shells_and_kernels_hold_nothing_but_what_they_were_given(sandbox: Sandbox) -> None:
    command = (await sandbox.exec(["python3", "-c", DESCRIPTORS], timeout_s=10)).stdout_text
    shell = (await sandbox.shell().run(f'python3 -c "{DESCRIPTORS}"', timeout_s=10)).output
    kernel = (await sandbox.kernel().run(DESCRIPTORS, timeout_s=20)).stdout

    for who, text in {"exec": command, "shell": shell, "kernel": kernel}.items():
        lines = [line.split(" ", 1) for line in text.splitlines()]
        assert len(lines) >= 3, who
        for number, where in lines:
            assert where.startswith(("pipe:", "socket:", "anon_inode:", "/dev/", "/proc/", "/run/rollstream/", "/workspace", "/root")), (
                who,
                number,
                where,
            )
            assert not where.endswith("(deleted)"), (who, number, where)


async def test_files_of_the_node_have_no_path_inside(sandbox: Sandbox, place: Path) -> None:
    image = image_folder()
    assert image is not None
    treasure = place / "treasure"
    treasure.write_text(SECRET)
    library = Path(os.__file__)
    ways = (
        "",
        "/proc/1/root",
        "/proc/self/root",
        "/oldroot",
        "/newroot",
        "/proc/1/cwd",
        "/proc/1/root/oldroot",
        "/proc/self/cwd/../../../..",
    )

    for path in (treasure, place, Path(__file__), library):
        for way in ways:
            found = await sandbox.exec(["test", "-e", f"{way}{path}"], timeout_s=10)
            if path != library or not way.endswith(("root", "..")):
                assert found.returncode == 1, f"{way}{path}"
    assert await sandbox.read_file("/etc/shadow") == (image / "etc/shadow").read_bytes()
    for name in ("/proc/kcore", "/proc/1/mem"):
        assert (await sandbox.exec(f"head -c 1 {name} >/dev/null", timeout_s=10)).returncode != 0, name


async def test_nothing_of_another_sandbox_is_reached(sandbox: Sandbox, neighbour: Sandbox, place: Path) -> None:
    await neighbour.write_file("/tmp/treasure", SECRET.encode())
    await neighbour.write_file("treasure", SECRET.encode())
    assert (
        await neighbour.kernel().run("import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0neighbour'); s.listen()", timeout_s=20)
    ).status == "ok"
    look = f"""
import os, socket
for top, folders, files in os.walk('/'):
    if top == '/':
        folders[:] = [name for name in folders if name not in ('proc', 'sys', 'usr')]
    if 'treasure' in files:
        print(top)
    if top.startswith('/run') and (top.endswith('/main') or set(files) - {{'kernel_boot.py'}}):
        print(top, files)
for pid in range(1, 40000):
    try:
        os.kill(pid, 0)
    except OSError:
        continue
    if not os.path.exists(f'/proc/{{pid}}'):
        print('signal reaches', pid)
try:
    socket.socket(socket.AF_UNIX).connect('\\0neighbour')
    print('abstract')
except ConnectionRefusedError:
    pass
print(open('/proc/sysvipc/shm').read().count('\\n'), {str(place)!r} in open('/proc/net/unix').read())
"""

    result = await sandbox.exec(["python3", "-c", look], timeout_s=30)

    assert (result.stdout_text, result.stderr_text) == ("1 False\n", "")


async def test_servers_of_the_node_are_not_reached(sandbox: Sandbox, place: Path) -> None:
    """As Redis is: by a port of loopback, a socket with a path, an abstract socket, a datagram."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        by_path.bind(str(place / "redis.sock"))
        abstract.bind(f"\0rs-{place.name}")
        for server in (tcp, by_path, abstract):
            server.listen()
            server.setblocking(False)
        program = f"""
import socket
for family, address in [(2, ('127.0.0.1', {tcp.getsockname()[1]})), (1, {str(place / "redis.sock")!r}), (1, '\\0rs-{place.name}')]:
    with socket.socket(family) as client:
        client.settimeout(5)
        try:
            client.connect(address)
            print('reached', address)
        except OSError:
            pass
for family, kind in [(2, socket.SOCK_RAW), (17, socket.SOCK_RAW), (40, socket.SOCK_STREAM)]:
    try:
        socket.socket(family, kind, 1 if kind == socket.SOCK_RAW else 0)
        print('opened', family, kind)
    except OSError:
        pass
print('tried')
"""

        result = await sandbox.exec(["python3", "-c", program], timeout_s=20)

        assert (result.stdout_text, result.stderr_text) == ("tried\n", "")
        for server in (tcp, by_path, abstract):
            with pytest.raises(BlockingIOError):
                server.accept()


async def test_the_kernels_settings_and_devices_cannot_be_changed(sandbox: Sandbox) -> None:
    tries = (
        "echo 1 >/proc/sys/kernel/sysrq",
        "echo x >/proc/sys/kernel/core_pattern",
        "echo b >/proc/sysrq-trigger",
        "echo 4194304 >/proc/sys/kernel/pid_max",
        "echo 4194304 >/proc/1/root/proc/sys/kernel/pid_max",
        "echo 1073741824 >/proc/sys/kernel/shmmax",
        "echo 32000 >/proc/sys/kernel/msgmni",
        "mount -o remount,rw /proc/sys || umount /proc/sys",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        "echo -1000 >/proc/self/oom_score_adj",
        "ls /sys/kernel",
        "head -c1 /dev/mem",
        "head -c1 /dev/kmsg",
        "mknod /dev/shm/d c 1 1",
        "keyctl show || python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(250, 0, -3, 1) == -1)'",
        "echo '0 0 1' >/proc/self/uid_map",
    )

    for command in tries:
        result = await sandbox.exec(f"( {command} ) 2>/dev/null", timeout_s=10)
        assert result.returncode != 0, (command, result.stdout)


async def test_calls_on_the_list_are_refused(sandbox: Sandbox) -> None:
    """EPERM whatever the arguments: the filter answers, and not the kernel that looked at them."""
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86_64")
    program = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in {CALLS}:
    ctypes.set_errno(0)
    answer = libc.syscall(number, -1, -1, -1, -1, -1, -1)
    if (answer, ctypes.get_errno()) != (-1, 1):
        print(number, answer, ctypes.get_errno())
"""

    assert (await sandbox.exec(["python3", "-c", program], timeout_s=10)).stdout == b""
