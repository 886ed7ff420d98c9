"""A whole trainer, as a process that a test kills: it goes on where it was, however it ended.

`python -m tests.faults.trainer_program RUN DIARY`: two steps of one group, a validation, a single job that ends, one that is cancelled.
Each trained prompt is noted in the diary before its step is acked, `TRAINS_S` seconds later (default: at once).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from pipeline.errors import InvalidRequest
from pipeline.logs import configure_logs
from pipeline.settings import QueueSettings
from tests.faults.diary import Diary
from trainer_client import JobRequest, LimitsRequest, SamplingRequest, StepRequest, ValidationRequest, connect

STEPS = 2
PROMPTS = 40


async def main() -> None:
    run_id, diary = sys.argv[1], Diary(Path(sys.argv[2]))
    configure_logs(as_json=True, level="warning")
    rows = [{"question": f"What is {a} plus {a + 1}?", "answer": str(2 * a + 1)} for a in range(PROMPTS)]
    options: dict[str, object] = {"tools": False}
    async with connect(QueueSettings.load(), run=run_id) as run:
        await run.set_policy_version(run.next_step or 0)
        run.feed(rows, shuffle_seed=3)
        request = StepRequest(
            task="math",
            groups=1,
            n=4,
            ahead=0,
            options=options,
            sampling=SamplingRequest(max_tokens=300),
            limits=LimitsRequest(max_turns=2),
        )
        left = STEPS + 1 - (run.next_step or 1)
        if left > 0:
            async for step in run.steps(request, count=left, timeout_s=60):
                for group in step.groups:
                    diary.note(step.index, group.prompt_id)
                await asyncio.sleep(float(os.environ.get("TRAINS_S", "0")))
                await step.ack()
        with contextlib.suppress(InvalidRequest):  # it was acked
            await run.cancel_step(STEPS)
        try:
            validation = await run.validate(
                ValidationRequest(task="math", prompts=rows[:2], n=2, options=options, sampling=SamplingRequest(max_tokens=300)),
                index=1,
                timeout_s=60,
            )
            diary.note("validated", ",".join(member.result.job for member in validation.members))
            await validation.ack()
        except InvalidRequest as acked:  # by the process before
            diary.note("acked", "was acked" in str(acked))
        ended, cancelled = await run.submit(
            [JobRequest(task="math", id=f"{name}-{run.incarnation}", prompt=rows[0], options=options) for name in ("ends", "goes")]
        )
        await cancelled.cancel()
        await run.ack([await ended.result(timeout_s=60), await cancelled.result(timeout_s=60)])


if __name__ == "__main__":
    asyncio.run(main())
