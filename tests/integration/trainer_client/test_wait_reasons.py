"""Why nothing comes: a capability that no worker serves, though others of its stage live."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.messages import Stage
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.step_request import StepRequest
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import ManualWorker, wait_until
from tests.integration.trainer_client.rows import rows
from trainer_client import JobRequest, Run, WaitTimeout, connect

pytestmark = pytest.mark.one_server
SENTENCE = r"No living worker of stage INIT serves the capability 'isolated', and \d+ jobs wait for one"


async def says(run: Run) -> bool:
    return any("serves the capability" in reason for reason in await run.why_waiting())


async def test_a_capability_that_no_worker_serves_is_named(settings: QueueSettings, supervisor: Supervisor, scripts: Scripts) -> None:
    """Workers of INIT live, and nothing stood in the way that anybody told of: the jobs waited in a stream of their own."""
    common = ManualWorker(scripts, Stage.INIT)
    await common.take_name()
    async with connect(settings, run="r") as run:
        job = await run.submit(JobRequest(task="demo", id="one", prompt=rows(1)[0], capability="isolated"))
        await common.take()  # the server lists a consumer when it has asked
        with pytest.raises(WaitTimeout, match=SENTENCE):
            await job.result(timeout_s=0.05)

        run.feed(rows(20))
        step = asyncio.ensure_future(anext(run.steps(StepRequest(task="demo", groups=2, n=2, capability="isolated"))))
        await wait_until(lambda: says(run), "it is said of the step, too", timeout_s=20)
        assert not step.done()

        able = ManualWorker(scripts, Stage.INIT, "w2", stream=scripts.keys.stage_stream(Stage.INIT, capability="isolated"))
        await able.take_name()
        await able.take()

        async def is_not_said() -> bool:
            return not await says(run)

        await wait_until(is_not_said, "one lives")
        step.cancel()
