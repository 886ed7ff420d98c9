"""Workers of every stage and the node's sandbox service are killed while jobs run: every job ends, typed, and nothing of a sandbox is left.

`ROLLSTREAM_KILL_ROUNDS` says how often each is killed; a few times, where it is not set.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts import Unit
from pipeline.scripts.calls import new_nonce
from pipeline.testing import QueueAudit, wait_until
from tests.contract.sandbox.kinds import KINDS, required
from tests.faults.math_fleet import RUN, MathFleet, math_fleet

ROUNDS = int(os.environ.get("ROLLSTREAM_KILL_ROUNDS", "2"))
JOBS = 6
"""Of each round: enough that every stage has some when it is hit."""


@pytest.fixture(params=["process", "bubblewrap"])
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[MathFleet]:
    why = KINDS[request.param].why_not()
    if why:
        (pytest.fail if request.param in required() else pytest.skip)(f"{request.param}: {why}")
    async with math_fleet(ROLLSTREAM_SANDBOX_BACKEND=request.param, ROLLSTREAM_SANDBOX_JANITOR_S="1") as fleet:
        yield fleet


async def results(fleet: MathFleet) -> int:
    return int(await ask(fleet.client, "XLEN", fleet.keys.results(RUN)))


def kill_service(fleet: MathFleet) -> None:
    """The process that has the lock of the run folder, unless it has just ended by itself; workers start the next one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((fleet.folder / "run" / "sandbox.lock").read_text()), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(200 + 100 * ROUNDS)
async def test_jobs_whose_workers_and_services_are_killed_all_end_and_leave_no_sandbox(fleet: MathFleet) -> None:
    fleet.incarnation = await fleet.scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
    units: list[Unit] = []
    for _ in range(ROUNDS):
        for victim in (*Stage, None):
            ended = await results(fleet)
            units += await fleet.accept(len(units), JOBS)

            async def is_busy(ended: int = ended) -> bool:
                return await results(fleet) > ended

            await wait_until(is_busy, "jobs come through", timeout_s=60)
            if victim is None:
                kill_service(fleet)
            else:
                fleet.start(victim)  # kills the one before

    async def all_ended() -> bool:
        return await results(fleet) >= len(units)

    await wait_until(all_ended, f"{len(units)} jobs ended", timeout_s=90)
    audit = QueueAudit(fleet.client, fleet.keys)
    assert await audit.all_ended(RUN, units) == []
    assert {record["out"] for record in await audit.results(RUN)} <= {"ok", "model_failure"}
    await wait_until(lambda: not fleet.of_sandboxes(), "no sandbox is left", timeout_s=6)
