"""A process that owns a pool, to be killed by a test: prints the child's id, then has it busy or idle for good."""

from __future__ import annotations

import asyncio
import sys

from workers.graders import KillablePool


async def main(what: str) -> None:
    async with KillablePool("tests.unit.graders.example_child", processes=1) as pool:
        reply = await pool.call({"do": "echo", "text": "hello"}, limit_s=30)
        print(reply["pid"], flush=True)
        if what != "idle":
            await pool.call({"do": what}, limit_s=600)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
