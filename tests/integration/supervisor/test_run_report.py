"""What people are shown of a run is what its trainer is told, and it fits a page."""

from __future__ import annotations

import io

import orjson
import pytest
from rich.console import Console

from ops.look import look, look_at_run
from ops.run_report import UnknownRun, report_on
from ops.run_view import report_page, runs_table
from ops.top.view import screen
from pipeline.inference_pool import PlacesOf, PoolPlaces
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.run_account import read_monitors, read_steps, texts
from pipeline.supervisor.step_spec import StepSpec
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, mixed
from trainer_client.run_statistics import read_statistics
from trainer_client.seen_jobs import SeenJobs

SPEC = StepSpec(target=2, n=4, over=1.0)


async def a_run_with_a_history(fleet: Fleet) -> None:
    """Three steps reached, one open, one group filtered, prompts missing."""
    await fleet.push_many(9)
    for step in range(5):
        await fleet.open(step, SPEC)
    await fleet.supervise()
    await fleet.work()
    first, *others = fleet.groups()
    await fleet.end(first, all_right)
    for group in others[:6]:
        await fleet.end(group, mixed)
    await fleet.supervise()


def printed(*shown: object) -> str:
    """What a terminal of 80 columns gets."""
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False)
    for thing in shown:
        console.print(thing)
    return out.getvalue()


async def test_a_worker_that_took_its_name_again_is_seen(client: AsyncClient, keys: Keys, settings: QueueSettings, fleet: Fleet) -> None:
    """After a flush `top` said that nobody served, while jobs went through: the lock that a batch takes again has no stage."""
    stream = keys.stage_stream(Stage.RUN)
    await ask(client, "XGROUP", "CREATE", stream, "run", "0", "MKSTREAM")
    await ask(client, "XGROUP", "CREATECONSUMER", stream, "run", "run-n1-0")
    await ask(client, "HSET", keys.worker("run-n1-0"), "boot", "b1")
    await ask(client, "PEXPIRE", keys.worker("run-n1-0"), 60_000)

    found = await look(client, settings)

    assert {stage.value: seen.workers for stage, seen in found.stages.items()} == {"init": 0, "run": 1, "eval": 0}


async def test_a_page_says_what_the_trainer_is_told(fleet: Fleet, client: AsyncClient, keys: Keys, settings: QueueSettings) -> None:
    await a_run_with_a_history(fleet)

    report = await report_on(client, settings, keys, RUN)
    told = await read_statistics(client, keys, RUN, SeenJobs())

    assert dict(report.look.tokens) == dict(told.tokens) == {"kept": 6 * 12, "filtered": 12}
    assert dict(report.look.groups) == dict(told.groups)
    assert dict(report.prompts) == dict(told.prompts)
    assert report.monitors.length == told.monitors.length
    assert [(step.index, step.state, step.accepted) for step in report.steps] == [
        (0, "reached", 2),
        (1, "reached", 2),
        (2, "reached", 2),
        (3, "open", 0),
        (4, "open", 0),
    ]
    records = {record["k"]: record for record in await fleet.records("step")}
    for step in report.steps[:3]:
        record = records[str(step.index)]
        assert step.tokens.get("kept") == int(record["tokens_kept"])
        assert step.took_s == int(record["took_ms"]) / 1000
        assert step.starvation.watched_s == pytest.approx(int(record["watched_ms"]) / 1000, abs=0.002)
    page = printed(report_page(report))
    assert "step 3" in page
    assert "0 of 2 groups" in page
    assert "kept 72 (86%)" in page
    assert "the reserve is empty" in page.lower()
    assert max(map(len, page.splitlines())) <= 80
    assert orjson.loads(orjson.dumps(report.as_map()))["monitors"]["figures"].keys() == told.monitors.figures().keys()


async def test_a_list_has_a_line_a_run_and_never_cuts_its_id(
    fleet: Fleet, client: AsyncClient, keys: Keys, settings: QueueSettings
) -> None:
    await a_run_with_a_history(fleet)
    long_name = "a-run-with-a-name-that-is-rather-long-for-a-table"[:48]
    await fleet.scripts.connect_run(long_name, nonce="n", ttl_s=60.0)

    found = await look(client, settings)
    lines = printed(runs_table(found.runs))

    assert {run.name for run in found.runs} == {RUN, long_name}
    assert "3: 0/2" in lines
    assert long_name in "".join(line.split(" ")[0] for line in lines.splitlines())


async def test_only_the_newest_steps_are_read(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await a_run_with_a_history(fleet)
    head = texts(await ask(client, "HGETALL", keys.run(RUN)))

    assert [step.index for step in await read_steps(client, keys, RUN, head, last=2)] == [1, 2, 3, 4]
    assert [step.index for step in await read_steps(client, keys, RUN, head, last=0)] == [3, 4]


async def test_a_shortage_that_goes_on_is_in_the_share(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await a_run_with_a_history(fleet)
    await ask(client, "HSET", keys.run(RUN), "short", "prompts")
    await ask(client, "HINCRBY", keys.step(RUN, 3), "front", -10_000)
    now_s, _ = await ask(client, "TIME")
    await ask(client, "HSET", keys.run(RUN), "short.t", int(now_s) * 1000 - 5000)

    monitors = await read_monitors(client, keys, RUN, texts(await ask(client, "HGETALL", keys.run(RUN))))

    assert monitors.shortage == "prompts"
    assert 0.3 < monitors.starvation.share < 0.8


async def test_a_run_that_nobody_knows_is_said_so(client: AsyncClient, keys: Keys, settings: QueueSettings) -> None:
    assert await look_at_run(client, keys, "nobody") is None
    with pytest.raises(UnknownRun, match="rollstream run list"):
        await report_on(client, settings, keys, "nobody")


async def test_a_limit_below_what_ops_allow_is_shown(fleet: Fleet, client: AsyncClient, keys: Keys, settings: QueueSettings) -> None:
    """A run whose model servers are under pressure looked like one with idle slots."""
    await a_run_with_a_history(fleet)
    pool = PoolPlaces(client, settings.namespace)
    await pool.say(RUN, "", "run-n1-0", PlacesOf(limit=32, bound=32, acting=9, held=0))
    assert "places" not in printed(screen(await look(client, settings)))

    await pool.say(RUN, "", "run-n2-0", PlacesOf(limit=10, bound=32, acting=10, held=3))

    assert "model places 42 of 64, 3 jobs held" in printed(screen(await look(client, settings)))
    assert "model places 42 of 64, 3 jobs held" in printed(report_page(await report_on(client, settings, keys, RUN)))
