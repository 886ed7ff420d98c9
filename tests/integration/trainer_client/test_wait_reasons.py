"""Why nothing comes. Each cause on a set-up that has it, named alike by the time-out of a wait, by the line of progress and on demand, with
what to do; and by the blocking facade. Only what the run itself waits for is named."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.causes import Cause, Reason
from pipeline.errors import StaleIncarnation
from pipeline.inference_pool import InferencePool, Server
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.run_calls import RunScripts
from pipeline.settings import QueueSettings
from pipeline.step_request import StepRequest
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import ManualWorker, wait_until
from tests.integration.trainer_client.pump import Pump
from tests.integration.trainer_client.rows import rows
from tests.integration.trainer_client.terminal import Terminal
from trainer_client import JobRequest, Run, WaitTimeout, connect, connect_blocking
from trainer_client.progress_line import ProgressLine

pytestmark = pytest.mark.one_server
STEP = StepRequest(task="demo", groups=2, n=2)
URL = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture
def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    return InferencePool(client, settings.namespace, lease_s=30.0)


async def is_first(run: Run, cause: Cause, what: str, do: str, request: StepRequest = STEP) -> None:
    """A step is asked for, and does not come: this is the first thing that is said of it, in every place."""
    with pytest.raises(WaitTimeout):
        await anext(run.steps(request, timeout_s=0.0))

    async def stands() -> bool:
        return (await run._reasons.of_step(1))[0].cause is cause

    await wait_until(stands, f"the first reason is {cause.value}", timeout_s=20)

    with pytest.raises(WaitTimeout) as late:
        await anext(run.steps(request, timeout_s=0.0))
    assert late.value.causes[0] is cause
    out = Terminal()
    async with ProgressLine(run._inbox, out, stalled_s=0.0).shown(1, request.groups, lambda: run._reasons.of_step(1)):
        await out.wrote.wait()
    for said in (late.value.why[0], (await run.why_waiting())[0], out.getvalue()):
        assert what in said
        assert do in said
    assert str(late.value).startswith(f"step 1: nothing after {late.value.waited_s:.1f} s. {late.value.why[0]}.")


async def hold_all_in_run(run: Run, pump: Pump) -> None:
    """Groups of a step are launched, and their jobs stand at a worker of RUN."""
    pump.hold_all = True
    run.feed(rows(20))
    with pytest.raises(WaitTimeout):
        await anext(run.steps(STEP, timeout_s=0.0))
    await wait_until(lambda: bool(pump._waiting), "a worker of RUN has a job", timeout_s=20)


async def test_no_worker_of_a_stage(settings: QueueSettings, supervisor: Supervisor, scripts: Scripts) -> None:
    init = ManualWorker(scripts, Stage.INIT)
    await init.take_name()
    async with connect(settings, run="r") as run:
        run.feed(rows(20))
        with pytest.raises(WaitTimeout):
            await anext(run.steps(STEP, timeout_s=0.0))

        async def moved() -> bool:
            held = await init.take()
            return bool(held and await init.hand_off(*held))

        await wait_until(moved, "INIT ended a job", timeout_s=20)

        await is_first(run, Cause.NO_WORKER, "No worker of stage RUN is alive, and ", "rollstream worker run --stage run")


async def test_no_model_server(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run="r") as run:
        await hold_all_in_run(run, pump)

        await is_first(run, Cause.NO_SERVER, "No model server is attached", "rollstream llm add --run r URL")


async def test_no_synced_server(settings: QueueSettings, supervisor: Supervisor, pump: Pump, pool: InferencePool) -> None:
    async with connect(settings, run="r") as run:
        await pool.attach("r", [Server(URL, control="trainer")], after_update=True)
        await hold_all_in_run(run, pump)

        await is_first(run, Cause.SERVER_UNSYNCED, f"No synced server ({URL} is unsynced", "run.weight_update")


async def test_all_servers_paused(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, pool: InferencePool, client: AsyncClient
) -> None:
    pauses = PoolPauses(client, settings.namespace)
    async with connect(settings, run="r") as run:
        await pool.attach("r", [Server(URL)])
        await hold_all_in_run(run, pump)
        await pauses.take("r", run.incarnation, "t1", why="away", mode="abort", to="", lease_s=60)

        await is_first(run, Cause.SERVERS_PAUSED, "Its engines are away, since ", "until t1 ends that (rollstream llm list --run r)")

        await pauses.resume("r", "t1", "back")
        assert Cause.SERVERS_PAUSED not in [reason.cause for reason in await run._reasons.of_step(1)]


async def test_the_quota(settings: QueueSettings, supervisor: Supervisor, pump: Pump, pool: InferencePool) -> None:
    async with connect(settings, run="r", quota=2) as run:
        await pool.attach("r", [Server(URL)])
        await hold_all_in_run(run, pump)

        await is_first(run, Cause.QUOTA_REACHED, "its quota of 2 jobs in flight", "rollstream run set r --quota N")


async def test_results_unread(settings: QueueSettings, supervisor: Supervisor, pump: Pump, pool: InferencePool) -> None:
    async with connect(settings.model_copy(update={"max_unread": 1}), run="r") as run:
        await pool.attach("r", [Server(URL)])
        single = await run.submit(JobRequest(task="demo", id="one", prompt=rows(1)[0]))
        await single.result(timeout_s=20)
        await hold_all_in_run(run, pump)

        await is_first(run, Cause.RESULTS_UNREAD, "records are not acked", "ack steps and results")

        await (await single.result()).ack()
        assert Cause.RESULTS_UNREAD not in [reason.cause for reason in await run._reasons.of_step(1)]


async def test_an_empty_reserve(settings: QueueSettings, supervisor: Supervisor) -> None:
    async with connect(settings, run="r") as run:
        await is_first(run, Cause.RESERVE_EMPTY, "The reserve is empty", "feed prompts")


async def test_a_paused_run(settings: QueueSettings, supervisor: Supervisor, client: AsyncClient, keys: Keys) -> None:
    async with connect(settings, run="r") as run:
        run.feed(rows(20))
        await RunScripts(client, keys).set_run("r", paused=True, window=8)

        await is_first(run, Cause.RUN_PAUSED, "The run is paused", "rollstream run set r --resume")


async def test_no_supervisor(settings: QueueSettings) -> None:
    async with connect(settings, run="r") as run:
        await wait_until(run.feed(rows(3)).ended.is_set, "all was fed")

        await is_first(run, Cause.NO_SUPERVISOR, "No supervisor is alive, and 3 prompts in the reserve are not drawn", "supervisor run")


async def test_a_capability_that_no_worker_serves(settings: QueueSettings, supervisor: Supervisor, scripts: Scripts) -> None:
    """Workers of INIT live, and nothing stood in the way that anybody told of: the jobs waited in a stream of their own."""
    common = ManualWorker(scripts, Stage.INIT)
    await common.take_name()
    sentence = r"No living worker of stage INIT serves the capability 'isolated', and \d+ jobs? waits? for one: start some with it"
    async with connect(settings, run="r") as run:
        job = await run.submit(JobRequest(task="demo", id="one", prompt=rows(1)[0], capability="isolated"))
        await common.take()  # the server lists a consumer when it has asked
        with pytest.raises(WaitTimeout, match=sentence):
            await job.result(timeout_s=0.05)

        run.feed(rows(20))
        request = STEP.model_copy(update={"capability": "isolated"})
        await is_first(run, Cause.NO_CAPABILITY, "serves the capability 'isolated', and ", "start some with it", request)

        able = ManualWorker(scripts, Stage.INIT, "w2", stream=scripts.keys.stage_stream(Stage.INIT, capability="isolated"))
        await able.take_name()
        await able.take(1)

        async def is_not_said() -> bool:
            return Cause.NO_CAPABILITY not in [reason.cause for reason in await run._reasons.of_step(1)]

        await wait_until(is_not_said, "one lives")


async def test_another_trainer_has_the_run(settings: QueueSettings) -> None:
    """By the time that a wait ends, the client has heard so itself or not: it says it in both cases."""
    async with connect(settings, run="r") as first:
        job = await first.submit(JobRequest(task="demo", id="one", prompt=rows(1)[0]))
        async with connect(settings, run="r"):
            with pytest.raises((WaitTimeout, StaleIncarnation), match=r"nother trainer (has the run|took the run over)"):
                await job.result(timeout_s=0.0)
            assert (await first._reasons.of_run())[0].cause is Cause.RUN_TAKEN
            with pytest.raises(StaleIncarnation, match="another trainer took the run over; end this one, or connect again"):
                await first.submit(JobRequest(task="demo", id="two", prompt=rows(1)[0]))


async def test_the_blocking_facade_says_the_same(settings: QueueSettings) -> None:
    def train() -> tuple[WaitTimeout, list[str]]:
        with connect_blocking(settings, run="r") as run:
            with pytest.raises(WaitTimeout) as late:
                next(run.steps(STEP, timeout_s=0.0))
            return late.value, run.why_waiting()

    late, said = await asyncio.to_thread(train)

    assert late.causes[0] is Cause.NO_SUPERVISOR
    assert late.why[0] == said[0]


async def test_what_another_run_waits_for_is_not_named(settings: QueueSettings, client: AsyncClient, scripts: Scripts) -> None:
    """Streams are shared. A run was told that it had no model server, or that a stage had no worker, for jobs of another one."""
    pump = Pump(scripts, hold_all=True)
    async with connect(settings, run="other") as other, connect(settings, run="r") as run:
        theirs = [await other.submit(JobRequest(task="demo", id=name, prompt=rows(1)[0])) for name in ("in-run", "in-eval")]
        while await pump.round():
            pass
        init, runner = ManualWorker(scripts, Stage.INIT), ManualWorker(scripts, Stage.RUN)
        [to_eval] = [held for job, held in pump._waiting.items() if job.endswith("in-eval")]
        await runner.hand_off(to_eval)
        await ask(client, "DEL", scripts.keys.worker("w1"))  # that name was held for all stages
        for worker in (init, runner):
            worker.consumer = f"{worker.stage.value}-only"
            await worker.take_name()
            await worker.deliver()

        mine = await run.submit(JobRequest(task="demo", id="mine", prompt=rows(1)[0]))

        def causes(reasons: list[Reason]) -> set[Cause]:
            return {reason.cause for reason in reasons}

        assert Cause.NO_SERVER in causes(await other._reasons.of_job(theirs[0].id))
        assert Cause.NO_WORKER in causes(await other._reasons.of_job(theirs[1].id))
        assert {Cause.NO_SERVER, Cause.NO_WORKER} <= causes(await other._reasons.of_run())
        assert causes(await run._reasons.of_run()) == {Cause.IN_PROGRESS}
        assert causes(await run._reasons.of_job(mine.id)) == {Cause.IN_PROGRESS}
