"""Three stages that do nothing, on the real consumer loop: what the queue itself costs.

Every job reads its spec, hands a body from INIT to RUN, journals one turn, hands a body to EVAL, and is settled with a reward and a body:
all that a real job asks of the queue, and nothing else. Run as `python -m ops.bench.noop_stages` by the benchmark, one process with all
three stages.
"""

from __future__ import annotations

import sys

from pipeline.attempts import End, HandedOff, JobControl, Settled
from pipeline.event_loop import run_process
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.scripts import Scripts
from pipeline.testing.all_stages import serve_all_stages
from workers.stages.bodies import Bodies

BODY = b"\x00" + bytes(1023)


class NoopWork:
    """The work of one stage."""

    def __init__(self, stage: Stage, bodies: Bodies) -> None:
        self._stage = stage
        self._bodies = bodies

    async def __call__(self, control: JobControl) -> End:
        claim, begun = control.begun.claim, control.begun
        await self._bodies.spec(begun)
        control.gate()
        if self._stage is Stage.INIT:
            return HandedOff(BODY)
        keys = self._bodies.keys
        if self._stage is Stage.RUN:
            await self._bodies.get(keys.body(claim.job, begun.init_attempt, "init"))
            await control.journal(0, BODY)
            return HandedOff(BODY)
        await self._bodies.get(keys.body(claim.job, begun.run_attempt, "run"))
        settlement = Settlement(
            outcome=Outcome.OK, reward=float(claim.member % 2), stop="finished", sampled_tokens=100, total_tokens=200, turns=1
        )
        return Settled(settlement, BODY, "eval")


async def main() -> int:
    """`python -m ops.bench.noop_stages NODE SLOTS`; the queue comes from the environment."""

    def work_of(stage: Stage, scripts: Scripts) -> NoopWork:
        return NoopWork(stage, Bodies(scripts.run_script.client, scripts.keys))

    return await serve_all_stages(sys.argv[1], int(sys.argv[2]), work_of)


if __name__ == "__main__":
    sys.exit(run_process(main()))
