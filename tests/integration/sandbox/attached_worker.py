"""A worker process that has a sandbox and waits to be killed: `python attached_worker.py SCRATCH RUN JOB ATTEMPT [HANDLE.json]`.

Prints one line of JSON when everything runs: the handle, and the processes its sandbox runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from workers.sandbox import Isolation, SandboxHandle, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

STARTS = """
sleep 1000 &
echo $! >>pids
setsid sleep 1001 </dev/null >/dev/null 2>&1 &
(setsid sh -c 'echo $$ >>pids; exec sleep 1002' </dev/null >/dev/null 2>&1 &)
env -i sh -c 'trap "" HUP TERM INT; echo $$ >>pids; while :; do /bin/sleep 1; done' </dev/null >/dev/null 2>&1 &
while [ $(wc -l <pids) -lt 3 ]; do sleep 0.01; done
"""


async def main() -> None:
    scratch, run, job, attempt = sys.argv[1:5]
    owner = SandboxOwner(job_id=job, attempt=int(attempt), boot_id="boot")
    async with LocalSandboxes(ProcessBackend(), scratch_dir=Path(scratch), run_dir=Path(run), node="here") as provider:
        if sys.argv[5:]:
            sandbox = await provider.attach(SandboxHandle.from_map(json.loads(sys.argv[5])), owner)
        else:
            sandbox = await provider.start(SandboxSpec(isolation=Isolation.NONE), owner)
        await sandbox.shell().run(STARTS, timeout_s=20)
        cell = "import os, subprocess\np = subprocess.Popen(['sleep', '1003'], start_new_session=True)\nprint(os.getpid(), p.pid)"
        kernel = await sandbox.kernel().run(cell, timeout_s=30)
        pids = (await sandbox.read_file("pids")).decode().split() + kernel.stdout.split()
        print(json.dumps({"handle": sandbox.handle.to_map(), "pids": [int(pid) for pid in pids]}), flush=True)
        await sandbox.wait_gone()


asyncio.run(main())
