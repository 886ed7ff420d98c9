"""A worker process whose RUN does what each job's prompt says: the double for stories of workers that die, freeze, fail and come back.

`python -m pipeline.testing.acting_worker NODE SLOTS DIARY`; the queue comes from the environment. What a prompt may hold:

    seconds   how long RUN takes
    fails     true: each RUN attempt fails
    bytes     size of what RUN hands on

Each RUN attempt writes a line when it begins and one when it ends into the diary: `begin|end|cancelled JOB ATTEMPT PID`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from pipeline import codec
from pipeline.attempts import End, GivenUp, HandedOff, JobControl, Settled
from pipeline.event_loop import run_process
from pipeline.logs import configure_logs
from pipeline.messages import Outcome, Prompt, Settlement, Stage
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.testing.all_stages import serve_all_stages

CLOCK_FILE = "ROLLSTREAM_TEST_CLOCK_FILE"
"""Names a file with seconds by which this process's wall clock is off."""
BODY = b"\x00made by a worker that acts"


class ActingWork:
    """The work of one stage."""

    def __init__(self, stage: Stage, scripts: Scripts, diary: Path) -> None:
        self._stage = stage
        self._scripts = scripts
        self._diary = diary

    async def __call__(self, control: JobControl) -> End:
        if self._stage is Stage.INIT:
            return HandedOff(BODY)
        if self._stage is Stage.EVAL:
            return Settled(Settlement(outcome=Outcome.OK, reward=1.0, stop="finished"), BODY, "eval")
        claim = control.begun.claim
        raw = await ask(self._scripts.run_script.client, "GET", self._scripts.keys.prompt(claim.group or claim.job))
        asked = codec.decode(Prompt, raw).data
        seconds = float(str(asked.get("seconds", 0)))
        control.progress(seconds + 60)
        control.gate()
        self._note("begin", control)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._note("cancelled", control)
            raise
        self._note("end", control)
        if asked.get("fails"):
            return GivenUp("failed", "told to fail")
        size = int(str(asked.get("bytes", 0)))
        return HandedOff(bytes(size) if size else BODY)

    def _note(self, what: str, control: JobControl) -> None:
        # one short append is one write: lines of several processes do not mix
        with self._diary.open("a", encoding="ascii") as diary:
            diary.write(f"{what} {control.held.job} {control.held.attempt} {os.getpid()}\n")


def put_clock_off(offset_file: Path) -> None:
    """Lets this process read a wall clock that is off by what the file says at the moment."""
    right = time.time
    time.time = lambda: right() + float(offset_file.read_text(encoding="ascii"))


async def main() -> int:
    if os.environ.get(CLOCK_FILE):
        put_clock_off(Path(os.environ[CLOCK_FILE]))
    node, slots, diary = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    configure_logs(as_json=True, level="info")
    return await serve_all_stages(node, slots, lambda stage, scripts: ActingWork(stage, scripts, diary), grace_s=2.0)


if __name__ == "__main__":
    sys.exit(run_process(main()))
