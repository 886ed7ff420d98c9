"""Run by a Python of a test's own: `python -m tests.contract.sandbox.node_program KIND FOLDER` prints where it is found in sandboxes
without an image, whether it can be changed there, and where it is found after the sandbox has put a link in its way and was parked."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.kinds import KINDS
from workers.sandbox import Sandbox

FOUND = "found:"


async def where(sandbox: Sandbox) -> str:
    found = await sandbox.exec([sys.executable, "-c", "import sys, marker; print(sys.prefix, marker.__file__)"], timeout_s=20)
    return (found.stdout_text + found.stderr_text).strip()


async def main(name: str, folder: Path) -> None:
    kind = KINDS[name]
    top = Path(sys.prefix).parents[-3]  # the folder in /tmp below which it lies
    async with kind.open(folder) as provider:
        first = await provider.start(replace(kind.spec, image=""), an_owner("job"))
        print(FOUND, await where(first))
        tried = await first.exec(["touch", f"{sys.prefix}/mine"], timeout_s=10)
        print(FOUND, tried.stderr_text.strip().rpartition(": ")[2])
        moved = await first.exec(f"mv {top} {top}-moved && ln -s /etc {top}", timeout_s=10)
        assert moved.returncode == 0, moved.stderr_text
        handle = await first.park()
        async with await provider.attach(handle, an_owner("job", attempt=2)) as second:
            print(FOUND, await where(second))


Path(sys.argv[2]).mkdir()
asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
