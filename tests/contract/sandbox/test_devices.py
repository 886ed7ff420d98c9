"""/dev has what programs need and holds no memory of the node's: what lies in a file system of memory is in no process's count."""

from __future__ import annotations

from tests.contract.sandbox.kinds import Kind
from workers.sandbox import Sandbox

SHARE = """
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=32 * 1024 * 1024)
block.buf[-1] = 7
again = shared_memory.SharedMemory(block.name)
print(again.buf[-1])
again.close()
block.close()
block.unlink()
"""


async def test_shared_memory_works_and_is_on_the_disk(walled: Kind, sandbox: Sandbox) -> None:
    await sandbox.write_file("share.py", SHARE.encode())

    shared = await sandbox.exec("python3 share.py; stat -f -c %T /dev/shm", timeout_s=20)

    value, *file_system = shared.stdout_text.split()
    assert value == "7", shared.stderr_text
    assert file_system not in (["tmpfs"], ["ramfs"])


async def test_elsewhere_in_dev_there_is_no_room(walled: Kind, sandbox: Sandbox) -> None:
    """A sandbox that is bounded in memory could take half of the node's through a file system that nobody watches: by what is in its files,
    or by empty ones, of which Apptainer's /dev took millions."""
    written = await sandbox.exec(
        "head -c 1 /dev/zero >/dev/big; echo $?; touch /dev/empty; echo $?; mkdir /dev/folder; echo $?", timeout_s=20
    )

    assert written.stdout_text.split() == ["1", "1", "1"], written.stderr_text


async def test_the_devices_that_programs_open_are_there(walled: Kind, sandbox: Sandbox) -> None:
    look = "for name in null zero random urandom tty; do [ -c /dev/$name ] || echo $name; done; head -c 3 /dev/urandom | wc -c"

    seen = await sandbox.exec(f"{look}; echo x >/dev/null", timeout_s=10)

    assert seen.stdout_text.split() == ["3"], seen.stderr_text
