"""A worker with a sandbox of the node's service, to be killed: `python worker_program.py PLACE ISOLATION WORD [leave]`.

Prints the sandbox's id when all that is to be killed runs: programs whose command lines hold WORD, some of them daemons. Then waits for
the end of the sandbox, and prints what it was told. With `leave` it is past INIT: it has parked the sandbox, and attached to it again.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from workers.sandbox import SandboxError, SandboxOwner, SandboxSpec
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.spec import Isolation

STARTS = """
sleep {word} &
setsid sleep {word} </dev/null >/dev/null 2>&1 &
(setsid sh -c 'sleep {word}; :' </dev/null >/dev/null 2>&1 &)
trap '' HUP TERM INT
(trap '' HUP TERM INT; while :; do sleep {word}; done) &
"""
UNMARKED = "(env -i setsid /bin/sleep {word} </dev/null >/dev/null 2>&1 &)\n"


async def main() -> None:
    place, isolation, word = sys.argv[1:4]
    owner = SandboxOwner(job_id=f"job-{word}", attempt=1, boot_id="boot")
    async with RemoteSandboxes(Path(place) / "run", boot="boot") as node:
        sandbox = await node.start(SandboxSpec(isolation=Isolation(isolation)), owner)
        if "leave" in sys.argv:
            await sandbox.write_file("made", b"by init")
            sandbox = await node.attach(await sandbox.park(), SandboxOwner(job_id=f"job-{word}", attempt=2, boot_id="boot"))
        script = STARTS + (UNMARKED if isolation != "none" else "")
        await sandbox.shell().run(script.format(word=word), timeout_s=30)
        kernel = await sandbox.kernel().run(f"import subprocess; p = subprocess.Popen(['sleep', '{word}'])", timeout_s=60)
        print(sandbox.handle.sandbox_id, kernel.status, flush=True)
        try:
            await sandbox.exec(f"sleep {word}", timeout_s=600)
        except SandboxError as error:
            print(type(error).__name__, flush=True)


asyncio.run(main())
