"""The process that a chaos campaign kills: all three stages, with work that takes a while, sometimes fails, and sometimes blocks.

`python -m ops.chaos.worker_process NODE SLOTS SEED`; the queue comes from the environment.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from pipeline.attempts import End, GivenUp, HandedOff, JobControl, Settled
from pipeline.event_loop import run_process
from pipeline.logs import configure_logs
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.scripts import Scripts
from pipeline.testing.all_stages import serve_all_stages
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


async def main() -> int:
    node, slots, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    configure_logs(as_json=True, level="warning")
    chance = random.Random(seed)

    def work_of(stage: Stage, scripts: Scripts) -> ChaosWork:
        return ChaosWork(stage, Bodies(scripts.run_script.client, scripts.keys), chance)

    return await serve_all_stages(node, slots, work_of, grace_s=0.3)


if __name__ == "__main__":
    sys.exit(run_process(main()))
