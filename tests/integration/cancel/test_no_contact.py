"""Promise 4: a worker without contact to Redis for two leases starts no tool call, and no model call at all. It cannot know what was
cancelled, nor whether another has its jobs by now."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from pipeline.errors import LeaseLost
from pipeline.messages import Sampling, Stage, Trajectory
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from tests.integration.cancel.workplace import Acting, Workplace
from workers.handlers.base import RunContext
from workers.llm.backend import GenRequest

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(60)]
LEASE_S = 1.0


@dataclass
class Calling(Acting):
    """RUN calls its model again and again, or passes the gate as each tool call does, and says nothing to Redis meanwhile."""

    calls_model: bool = True
    passed_s: list[float] = field(default_factory=list)
    """When each call had ended, by the monotonic clock."""
    refused: list[type[BaseException]] = field(default_factory=list)

    async def run(self, context: RunContext) -> Trajectory:
        for number in range(1_000_000):
            try:
                if self.calls_model:
                    request = GenRequest(
                        request_id=f"{context.spec.job}.{context.spec.attempt}.{number}",
                        prompt_ids=[1, 2, 3],
                        sampling=Sampling(),
                        max_tokens=1,
                        seed=0,
                    )
                    await context.backend.generate(request, timeout_s=60)
                else:
                    context.gate()
                    await asyncio.sleep(0.005)
            except (LeaseLost, asyncio.CancelledError) as error:
                self.refused.append(type(error))
                raise
            self.passed_s.append(time.monotonic())
        raise AssertionError("nobody stopped it")


@pytest.mark.slow
@pytest.mark.parametrize("calls_model", [True, False], ids=["model", "tool"])
async def test_no_call_starts_without_contact_for_two_leases(workplace: Workplace, redis_server: PrivateServer, calls_model: bool) -> None:
    workplace.settings = workplace.settings.model_copy(update={"lease_s": LEASE_S})
    handler = Calling(has_sandbox=False, calls_model=calls_model)
    async with workplace.model:
        await workplace.attach()
        with LossyProxy(redis_server.socket) as proxy:
            await workplace.serve(Stage.INIT, handler=handler)
            await workplace.serve(Stage.RUN, handler=handler, url=proxy.url)
            (job,) = await workplace.add("one")
            await wait_until(lambda: len(handler.passed_s) > 10, "it calls", timeout_s=20)

            proxy.begin_outage()
            out_s = time.monotonic()
            sent = len(handler.passed_s)
            await workplace.scripts.cancel("job", [job], "user")
            await wait_until(lambda: handler.refused, "the next call was refused")

            assert handler.refused == [LeaseLost]
            # a call that had begun by then may end later: each one began when the one before it had ended
            assert handler.passed_s[-2] <= out_s + 2 * LEASE_S
            if calls_model:
                assert len(handler.passed_s) <= sent + 1, "no call begins without Redis: its run may be paused (ADR 12)"
            else:
                assert len(handler.passed_s) > sent, "it worked on as long as its lease may have lived"
            assert workplace.model.engine.request_ids() == []
            proxy.heal()
            await workplace.cancelled(job, "user")
            await workplace.nothing_is_left()
            await workplace.leave_all()
