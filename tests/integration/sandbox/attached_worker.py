"""A worker process that has a sandbox and waits to be killed: `python attached_worker.py KIND PLACE JOB ATTEMPT [HANDLE.json]`.

Prints one line of JSON when everything runs: the handle, and the processes its sandbox runs, by the node's numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

from tests.contract.sandbox.kinds import KINDS
from workers.sandbox import SandboxHandle, SandboxOwner
from workers.sandbox.local import LocalSandbox

STARTS = """
sleep 1000 &
echo $! >>pids
setsid sleep 1001 </dev/null >/dev/null 2>&1 &
(setsid sh -c 'echo $$ >>pids; exec sleep 1002' </dev/null >/dev/null 2>&1 &)
env -i sh -c 'trap "" HUP TERM INT; echo $$ >>pids; while :; do /bin/sleep 1000; done' </dev/null >/dev/null 2>&1 &
while [ $(wc -l <pids) -lt 3 ]; do sleep 0.01; done
"""


def same_pid_namespace(pid: int) -> list[int]:
    """All processes of a sandbox with walls, its PID 1 among them."""
    wanted, found = os.readlink(f"/proc/{pid}/ns/pid"), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                found.append(int(name))
    return found


async def main() -> None:
    name, place, job, attempt = sys.argv[1:5]
    kind = KINDS[name]
    owner = SandboxOwner(job_id=job, attempt=int(attempt), boot_id="boot")
    async with kind.open(Path(place)) as provider:
        if sys.argv[5:]:
            sandbox = await provider.attach(SandboxHandle.from_map(json.loads(sys.argv[5])), owner)
        else:
            sandbox = await provider.start(kind.spec, owner)
        await sandbox.shell().run(STARTS, timeout_s=20)
        cell = "import os, subprocess\np = subprocess.Popen(['sleep', '1003'], start_new_session=True)\nprint(os.getpid(), p.pid)"
        kernel = await sandbox.kernel().run(cell, timeout_s=30)
        pids = [int(pid) for pid in (await sandbox.read_file("pids")).decode().split() + kernel.stdout.split()]
        assert isinstance(sandbox, LocalSandbox)
        if sandbox.keeper is not None:
            pids = same_pid_namespace(sandbox.keeper.pid)
        print(json.dumps({"handle": sandbox.handle.to_map(), "pids": pids}), flush=True)
        await sandbox.wait_gone()


asyncio.run(main())
