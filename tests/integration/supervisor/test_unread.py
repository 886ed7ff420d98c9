"""A trainer that does not take what is there gets nothing for steps ahead, and always what its oldest open step needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.ledger import launch
from pipeline.supervisor.loading import LedgerReader
from pipeline.supervisor.loop import Supervisor
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import Basis, OpenStep, RunView
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, mixed
from tests.integration.trainer_client.pump import Pump, pumping
from trainer_client import StepRequest, connect

SPEC = StepSpec(target=2, n=2, over=1.0)
MOST = 5


@pytest.fixture
async def bounded(client: AsyncClient, keys: Keys, scripts: Scripts) -> Fleet:
    """A run whose results may hold five records."""
    steps, reader = StepScripts(client, keys), LedgerReader(client, keys, max_unread=MOST)
    fleet = Fleet(scripts, steps, Drain(reader, steps, window=256), reader)
    await fleet.connect()
    return fleet


async def fill_results(fleet: Fleet, records: int) -> None:
    """Records that the trainer has not acked."""
    for number in range(records):
        await ask(fleet.scripts.run_script.client, "XADD", fleet.scripts.keys.results(RUN), "*", "kind", "note", "note", f"{number}")
    await ask(fleet.scripts.run_script.client, "PEXPIRE", fleet.scripts.keys.results(RUN), 60_000)


async def test_beyond_the_bound_only_the_oldest_step_is_launched_for(bounded: Fleet) -> None:
    await bounded.push_many(40)
    for index in (1, 2, 3):
        await bounded.open(index, SPEC)
    await fill_results(bounded, MOST)

    await bounded.supervise()

    flying = await bounded.members(bounded.scripts.keys.flying(RUN))
    assert {(await bounded.hash(bounded.scripts.keys.group(group)))["step"] for group in flying} == {"1"}
    assert (await bounded.view()).is_behind


async def test_what_the_trainer_waits_for_is_replaced_and_reached_while_it_is_behind(bounded: Fleet) -> None:
    """Groups of the oldest step are filtered: what replaces them is launched although the results are too many, or the trainer, which
    cannot ack before it has its step, would wait for ever."""
    await bounded.push_many(40)
    for index in (1, 2):
        await bounded.open(index, SPEC)
    await fill_results(bounded, MOST)
    await bounded.supervise()
    for ending in (all_right, all_right, mixed, mixed, mixed):
        await bounded.work()
        for group in bounded.groups():
            await bounded.end(group, ending)
        await bounded.supervise()

    assert [record["k"] for record in await bounded.records("step")][:1] == ["1"]


async def test_an_ack_lets_the_steps_ahead_go_on(bounded: Fleet) -> None:
    await bounded.push_many(40)
    for index in (1, 2):
        await bounded.open(index, SPEC)
    await fill_results(bounded, MOST)
    await bounded.supervise()
    before = len(await bounded.members(bounded.scripts.keys.flying(RUN)))

    await ask(bounded.scripts.run_script.client, "XTRIM", bounded.scripts.keys.results(RUN), "MAXLEN", 0)
    await bounded.supervise()

    assert len(await bounded.members(bounded.scripts.keys.flying(RUN))) == 2 * before


def test_a_group_in_flight_for_a_step_ahead_holds_nothing_back() -> None:
    """The rule itself: groups that were launched before the bound was met count for the oldest step, as ever."""
    steps = (OpenStep(index=4, spec=SPEC, accepted=0), OpenStep(index=5, spec=SPEC, accepted=0))
    view = RunView(basis=Basis(RUN, 1, 7), steps=steps, flying=1, reserve=9, is_behind=True)

    found = launch(view)

    assert found is not None
    assert (found.step, found.groups) == (4, found.bound - 1)


async def test_a_training_loop_that_acks_seldom_ends(settings: QueueSettings, scripts: Scripts) -> None:
    """Through the product: four steps ahead, a bound of less than one step's records, and an ack at the very end."""
    tight = settings.model_copy(update={"max_unread": 4})
    supervisor = Supervisor(tight, name="s1", period_s=0.05)
    async with connect(tight, run=RUN) as run, running(supervisor), pumping(Pump(scripts)):
        run.feed([{"i": i} for i in range(12)])
        steps = [step async for step in run.steps(StepRequest(task="math", groups=2, n=2, ahead=4), timeout_s=30)]
        assert sum(len(step.groups) for step in steps) == 12
        await steps[-1].ack()


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    """A supervisor at work while the block runs."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run(stop), name="supervisor")
        yield
        stop.set()
