"""The process that a chaos campaign kills: all three stages, with work that takes a while, sometimes fails, and sometimes blocks.

`python -m ops.chaos.worker_process NODE SLOTS SEED`; the queue comes from the environment.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from pipeline.attempts import End, GivenUp, HandedOff, JobControl, Settled
from pipeline.keys import Keys
from pipeline.logs import configure_logs
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.process import Member, Shutdown, serve_stage
from pipeline.redis_client import command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from workers.stages.bodies import Bodies

MEAN_WORK_S = 0.02
FAILS = 0.02
ENDS_EARLY = 0.02
"""Share of attempts in INIT and RUN that end their job there."""
BLOCKS = 0.01
"""Share of attempts that block the event loop, as CPU work in a handler would."""
BLOCK_S = 0.15
BODY = b"\x00" + bytes(200)


class ChaosWork:
    """Work of one stage that misbehaves by chance."""

    def __init__(self, stage: Stage, bodies: Bodies, chance: random.Random) -> None:
        self._stage = stage
        self._bodies = bodies
        self._chance = chance

    async def __call__(self, control: JobControl) -> End:
        await self._bodies.spec(control.begun)
        control.progress(10.0)
        await asyncio.sleep(self._chance.expovariate(1 / MEAN_WORK_S))
        if self._chance.random() < BLOCKS:
            time.sleep(BLOCK_S)  # noqa: ASYNC251  # that is the point
        control.gate()
        if self._chance.random() < FAILS:
            return GivenUp("failed", "chaos: this attempt fails")
        if self._stage is not Stage.EVAL and self._chance.random() < ENDS_EARLY:
            return Settled(Settlement(outcome=Outcome.MODEL_FAILURE, reward=0.0, reason="chaos: the job ends here"))
        if self._stage is Stage.RUN:
            for turn in range(self._chance.randrange(3)):
                await control.journal(turn, BODY)
                control.gate()
        if self._stage is Stage.EVAL:
            reward = float(control.begun.claim.member % 2)
            return Settled(Settlement(outcome=Outcome.OK, reward=reward, stop="finished"), BODY, "eval")
        return HandedOff(BODY)


async def main() -> None:
    node, slots, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    configure_logs(as_json=True, level="warning")
    queue = QueueSettings.load()
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    chance = random.Random(seed)
    client = command_client(queue)
    kept: list[bool] = []

    async def serve(stage: Stage) -> None:
        def work_of(keys: Keys, scripts: Scripts) -> ChaosWork:
            return ChaosWork(stage, Bodies(client, keys), chance)

        kept.append(await serve_stage(queue, Member(stage=stage, node=node, slots=slots, grace_s=0.3), client, shutdown, work_of))
        shutdown.stop.set()

    async with asyncio.TaskGroup() as tasks:
        for stage in Stage:
            tasks.create_task(serve(stage), name=stage.value)
    await client.aclose()
    raise SystemExit(0 if all(kept) else 3)


if __name__ == "__main__":
    asyncio.run(main())
