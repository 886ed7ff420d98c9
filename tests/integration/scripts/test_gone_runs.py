"""A run whose trainer is gone is closed and says so; one whose trainer could not be heard is not."""

from __future__ import annotations

import pytest

from pipeline.errors import RunClosed
from pipeline.janitor import Janitor
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.scripts.run_calls import RunScripts
from pipeline.settings import QueueSettings
from pipeline.testing import a_group, a_unit

from .conftest import Connect, Run

GONE_S = 3600.0
HOUR_MS = 3_600_000


@pytest.fixture
def janitor(scripts: Scripts, settings: QueueSettings) -> Janitor:
    return Janitor(scripts.run_script.client, scripts, scripts.keys, settings, "janitor-1")


async def silent_for(run: Run, seconds: float) -> None:
    """As if the trainer's last sign were so long ago."""
    contact = int(await ask(run.client, "HGET", run.audit.keys.run(run.name), "contact"))
    await ask(run.client, "HSET", run.audit.keys.run(run.name), "contact", contact - int(seconds * 1000))


async def run_hash(run: Run) -> dict[str, str]:
    return await run.audit.hash(run.audit.keys.run(run.name))


async def test_a_run_whose_trainer_is_gone_is_closed_with_all_its_jobs_and_says_so(connect: Connect, janitor: Janitor) -> None:
    run, other = await connect("gone", ttl_s=GONE_S), await connect("other", ttl_s=GONE_S)
    await run.accept(a_group("gone", members=4), a_unit("gone", prompt="single"), window=3)
    await other.accept(a_group("other", members=2), window=8)
    worker = run.worker(Stage.INIT, window=3)
    (held,) = [job for job in await worker.take(1) if job.job.startswith("gone")]
    await silent_for(run, GONE_S + 1)

    await janitor.round(quiet=False)

    assert (await run_hash(run))["st"] == "closed"
    assert (await run_hash(run))["why"] == "abandoned"
    assert await worker.hand_off(held) == ["cx:abandoned"]
    await worker.settle(held)
    assert await run.states() == {"done": 5}
    records = await run.audit.results("gone")
    assert [row["note"] for row in records if row["kind"] == "note"] == ["run_closed"]
    assert {(row["out"], row["why"]) for row in records if row["kind"] == "job"} == {("cancelled", "abandoned")}
    assert await other.states() == {"ready": 2}
    assert await run.audit.faults("other", other.units) == []
    with pytest.raises(RunClosed, match=r"closed \(abandoned\)"):
        await run.accept(a_unit("gone", prompt="late"))
    with pytest.raises(RunClosed, match=r"closed \(abandoned\)"):
        await run.scripts.touch_run("gone", run.incarnation)


async def test_a_second_round_tells_it_once(connect: Connect, janitor: Janitor) -> None:
    run = await connect(ttl_s=GONE_S)
    await run.accept(a_unit())
    await silent_for(run, GONE_S + 1)

    await janitor.round(quiet=False)
    await janitor.round(quiet=False)

    assert [row["kind"] for row in await run.audit.results("run1")] == ["note", "job"]


async def test_a_trainer_that_comes_back_to_a_closed_run_opens_it_again(connect: Connect, janitor: Janitor) -> None:
    run = await connect(nonce="first", ttl_s=GONE_S)
    await run.accept(a_unit(prompt="before"), window=0)
    await silent_for(run, GONE_S + 1)
    await janitor.round(quiet=False)

    again = await connect(nonce="again", ttl_s=GONE_S)

    assert again.incarnation == run.incarnation + 1
    assert await again.accept(a_unit(prompt="after")) == [True]
    await janitor.round(quiet=False)
    (held,) = await again.reach(Stage.EVAL)
    assert await again.worker(Stage.EVAL).settle(held) == ["ok"]
    found = await run_hash(again)
    assert found["st"] == "open"
    assert not {"why", "closed", "cx"} & set(found)


async def test_a_trainer_that_does_nothing_but_give_signs_keeps_its_run(connect: Connect, janitor: Janitor) -> None:
    """An optimizer step takes longer than the time to live; the client goes on to give signs meanwhile."""
    run = await connect(ttl_s=GONE_S)
    await run.accept(a_unit(), window=0)
    await silent_for(run, 0.9 * GONE_S)
    await janitor.round(quiet=False)
    await run.scripts.touch_run("run1", run.incarnation)
    await silent_for(run, 0.9 * GONE_S)

    await janitor.round(quiet=False)

    assert (await run_hash(run))["st"] == "open"
    assert await run.states() == {"ready": 1}


async def test_a_sign_between_the_look_and_the_close_saves_the_run(connect: Connect, scripts: Scripts) -> None:
    """The script that closes judges again: whoever found the run silent may be late."""
    run = await connect(ttl_s=GONE_S)
    await silent_for(run, GONE_S + 1)
    await scripts.touch_run("run1", run.incarnation)

    assert await RunScripts(run.client, run.audit.keys).close_gone_runs(0, 10) == (-1, [])

    assert (await run_hash(run))["st"] == "open"


async def test_time_in_which_redis_or_every_janitor_was_away_does_not_count(connect: Connect, janitor: Janitor) -> None:
    """Redis was away for a day, and each trainer's last sign is a day old when it returns. Their runs were closed before they could speak.
    After the first quiet lease they would still have been."""
    run = await connect(ttl_s=GONE_S)
    await round_of(janitor, run)
    await silent_for(run, 24 * GONE_S)
    await ask(run.client, "HINCRBY", run.audit.keys.key("janitor"), "seen", -24 * HOUR_MS)

    await round_of(janitor, run)
    await janitor.round(quiet=False)
    assert (await run_hash(run))["st"] == "open"

    await silent_for(run, GONE_S + 1)
    await janitor.round(quiet=False)
    assert (await run_hash(run))["st"] == "closed"


async def test_only_the_time_away_since_the_last_sign_is_forgiven(connect: Connect, janitor: Janitor) -> None:
    run = await connect(ttl_s=GONE_S)
    await round_of(janitor, run)
    await ask(run.client, "HINCRBY", run.audit.keys.key("janitor"), "seen", -24 * HOUR_MS)
    await round_of(janitor, run)
    await run.scripts.touch_run("run1", run.incarnation)
    await silent_for(run, GONE_S + 1)

    await janitor.round(quiet=False)

    assert (await run_hash(run))["st"] == "closed"


async def round_of(janitor: Janitor, run: Run) -> None:
    """A stamped round, with everything in it."""
    _, quiet, _ = await run.scripts.janitor_round("janitor-1", period_ms=5000, lease_ms=30_000)
    await janitor.round(quiet=quiet)


async def test_a_janitor_that_died_after_the_close_is_followed_by_another(connect: Connect, janitor: Janitor) -> None:
    run = await connect(ttl_s=GONE_S)
    await run.accept(a_group(members=3), window=0)
    await silent_for(run, GONE_S + 1)
    _, (gone,) = await RunScripts(run.client, run.audit.keys).close_gone_runs(0, 10)
    assert gone.closed_now

    await janitor.round(quiet=False)

    assert await run.states() == {"done": 3}


async def test_a_run_that_cannot_be_cancelled_keeps_no_other_open(connect: Connect, janitor: Janitor) -> None:
    """Something else wrote its results key: its jobs cannot end. The janitor says so, and goes on with the next run."""
    runs = [await connect(f"run{number}", ttl_s=GONE_S) for number in range(2)]
    for run in runs:
        await run.accept(a_unit(run.name), window=0)
        await silent_for(run, GONE_S + 1)
    await ask(runs[0].client, "SET", runs[0].audit.keys.results("run0"), "something else", "PX", 60_000)
    await ask(runs[0].client, "ZADD", runs[0].audit.keys.runs, 1, "run0", 2, "run1")

    await janitor.round(quiet=False)

    assert [(await run_hash(run))["st"] for run in runs] == ["closed", "closed"]
    assert await runs[1].states() == {"done": 1}


async def test_runs_are_looked_at_in_pages_and_an_unusable_one_keeps_no_other_open(connect: Connect) -> None:
    runs = [await connect(f"run{number}", ttl_s=GONE_S) for number in range(5)]
    for run in runs:
        await silent_for(run, GONE_S + 1)
    await ask(runs[1].client, "DEL", runs[1].audit.keys.run("run1"))
    await ask(runs[1].client, "SET", runs[1].audit.keys.run("run1"), "something else", "PX", 60_000)
    scripts, place, closed = RunScripts(runs[0].client, runs[0].audit.keys), 0, []

    while place >= 0:
        place, gone = await scripts.close_gone_runs(place, 2)
        closed += [found.run for found in gone]

    assert sorted(closed) == ["run0", "run2", "run3", "run4"]


def test_keys_outlive_the_close_so_that_results_wait_for_a_late_trainer(settings: QueueSettings) -> None:
    assert settings.run_keys_ttl_s == 2 * settings.run_ttl_s
    assert settings.model_copy(update={"run_ttl_s": 60.0}).run_keys_ttl_s == 86_460.0
