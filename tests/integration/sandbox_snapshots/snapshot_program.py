"""A worker process that takes snapshots and restores them until it is killed: `python snapshot_program.py KIND PLACE`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.contract.sandbox.kinds import KINDS
from workers.sandbox import SandboxOwner

OWNER = SandboxOwner(job_id="job", attempt=1, boot_id="boot")


async def main() -> None:
    kind = KINDS[sys.argv[1]]
    async with kind.open(Path(sys.argv[2])) as provider, await provider.start(kind.spec, OWNER) as sandbox:
        await sandbox.exec("for i in $(seq 500); do echo $i >f$i; done; sleep 1000 & touch ready", timeout_s=20)
        while True:
            snapshot = await sandbox.snapshot()
            async with await provider.restore(snapshot, OWNER):
                await provider.drop(snapshot, OWNER)


asyncio.run(main())
