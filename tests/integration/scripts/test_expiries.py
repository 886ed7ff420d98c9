"""Keys live as long as what needs them, however long that takes (promise 9)."""

from __future__ import annotations

import pytest

from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import Recovery, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import JournalTurn
from pipeline.scripts.step_calls import StepScripts
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import a_template, a_unit

from .conftest import Connect, Run

DAY_MS = 86_400_000


async def ttl_ms(run: Run, key: str) -> int:
    return int(await ask(run.client, "PTTL", key))


async def test_a_journal_lives_as_long_as_its_job(run: Run) -> None:
    """A job may run for a month, longer than the worker's own figure. A journal that ran out in the middle began again at 0: the next turn
    was refused as one that came too early, and a living attempt was told that it is lost."""
    await run.accept(a_unit(), template=a_template(wall_s=30 * 86_400.0))
    (held,) = await run.reach(Stage.RUN)

    assert await run.scripts.journal([JournalTurn(held.job, held.attempt, 0, b"turn")], ttl_ms=60_000) == ["1"]

    assert await ttl_ms(run, run.audit.keys.body(held.job, held.attempt, "turns")) > 30 * DAY_MS


async def test_a_salvaged_journal_lives_until_its_result_is_acked(connect: Connect) -> None:
    run = await connect(ttl_s=86_400.0)
    await run.accept(a_unit(), template=a_template(recovery=Recovery.SALVAGE_PARTIAL))
    (held,) = await run.reach(Stage.RUN)
    await run.scripts.journal([JournalTurn(held.job, held.attempt, 0, b"turn")], ttl_ms=60_000)
    assert await run.worker(Stage.RUN).recover("idle", held) == ["salvaged"]
    turns = run.audit.keys.body(held.job, held.attempt, "turns")
    await ask(run.client, "PEXPIRE", turns, 60_000)

    await TrainerScripts(run.client, run.audit.keys).extend(run.name, run.incarnation, [("job", held.job)])

    assert await ttl_ms(run, turns) > 0.9 * DAY_MS


async def test_an_open_step_lives_while_its_trainer_is_there(connect: Connect) -> None:
    """Nothing changes in a step while its first, long rollouts run. Its keys ran out under a waiting trainer when that took longer than the
    time to live."""
    run = await connect(ttl_s=86_400.0)
    keys = run.audit.keys
    await StepScripts(run.client, keys).open_step(run.name, run.incarnation, 0, StepSpec(target=1, n=2), a_template(), "tpl1")
    await ask(run.client, "HSET", keys.step_groups(run.name, 0), "group", "line")
    for key in (keys.step(run.name, 0), keys.step_groups(run.name, 0)):
        await ask(run.client, "PEXPIRE", key, 60_000)

    await run.scripts.touch_run(run.name, run.incarnation)

    assert await ttl_ms(run, keys.step(run.name, 0)) > 0.9 * DAY_MS
    assert await ttl_ms(run, keys.step_groups(run.name, 0)) > 0.9 * DAY_MS


@pytest.mark.usefixtures("settings")
async def test_servers_that_are_called_are_not_forgotten(client: AsyncClient, settings: QueueSettings) -> None:
    """They were attached once, and gone a time to live later, in the middle of a run whose trainer was there all the time."""
    pool = InferencePool(client, settings.namespace, lease_s=30.0)
    await pool.attach("run1", [Server("http://a")])
    keys = Keys.of_pool(settings.namespace)
    kept = [keys.pool_run("run1"), keys.pool_servers("run1"), keys.pool_server("run1", "http://a"), keys.key("holds", "http://a")]
    for key in kept:
        await ask(client, "PEXPIRE", key, 60_000)

    assert await pool.assign("run1", "", "job", 1)

    assert [key for key in kept if int(await ask(client, "PTTL", key)) < 6 * DAY_MS] == []
