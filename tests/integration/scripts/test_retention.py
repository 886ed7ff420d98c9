"""What nobody can reach any more goes, and nothing else: the scripts judge again, whoever proposed it."""

from __future__ import annotations

import pytest

from pipeline.janitor import Janitor
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import JournalTurn
from pipeline.scripts.retention_calls import RetentionScripts
from pipeline.testing import a_group, a_unit

from .conftest import Connect, Run

BODY = b"body"


def retention(run: Run, *, dry_run: bool = False) -> RetentionScripts:
    return RetentionScripts(run.client, run.audit.keys, dry_run=dry_run)


async def keys_of(run: Run, *prefixes: str) -> list[str]:
    """Keys of the test with these beginnings, without their tag."""
    keys = run.audit.keys
    found = [keys.short(key.decode()) async for key in run.client.scan_iter(match=keys.key("*").replace("{", "[{]"), count=1000)]
    return sorted(key for key in found if key.startswith(prefixes))


async def all_bodies(run: Run) -> list[str]:
    return await keys_of(run, "b:", "tp:", "g:", "j:")


# ---- bodies


async def test_of_a_run_that_lives_nothing_goes_that_a_job_still_names(run: Run) -> None:
    await run.accept(a_group(members=2), a_unit(prompt="single"))
    held = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(held[0], body=BODY, kind="eval")
    before = await all_bodies(run)

    assert await retention(run).drop_unowned(before) == (0, 0)

    assert await all_bodies(run) == before


async def test_what_a_lost_attempt_left_goes_and_what_the_current_one_writes_stays(run: Run) -> None:
    """A process that died in between, or one of an older version, left them; the scripts take away what they replace."""
    await run.accept(a_unit())
    (first,) = await run.reach(Stage.RUN)
    await run.worker(Stage.RUN).give_up(first, kind="back", why="drains")
    (held,) = await run.reach(Stage.RUN)
    await run.scripts.journal([JournalTurn(held.job, held.attempt, 0, b"turn")], ttl_ms=60_000)
    left = [f"b:{held.job}:{first.attempt}:{kind}" for kind in ("turns", "run", "attached", "eval")]
    coming = f"b:{held.job}:{held.attempt}:run"
    assert held.attempt > first.attempt
    for name in (*left, coming):
        await ask(run.client, "SET", run.audit.keys.key(name), BODY, "EX", 60)
    before = await keys_of(run, "b:")

    assert await retention(run, dry_run=True).drop_unowned(before) == (4, 16)
    assert await keys_of(run, "b:") == before
    assert await retention(run).drop_unowned(before) == (4, 16)

    assert await keys_of(run, "b:") == [key for key in before if key not in left]
    assert {coming, f"b:{held.job}:{held.attempt}:turns"} < set(await keys_of(run, "b:"))


async def test_bodies_of_jobs_that_are_gone_go_with_what_they_weigh(run: Run) -> None:
    keys = run.audit.keys
    for name, value in (("b:run1.x.0.0:1:run", "12345"), ("b:run1.x.0:prompt", "123"), ("b:never.x.0:prompt", "1"), ("tp:never:t", "1")):
        await ask(run.client, "SET", keys.key(name), value, "EX", 60)

    assert await retention(run).drop_unowned(await all_bodies(run)) == (4, 10)
    assert await retention(run).drop_unowned(["b:run1.x.0.0:1:run"]) == (0, 0)

    assert await all_bodies(run) == []


async def test_the_prompt_of_a_group_whose_hash_is_gone_stays_while_a_member_is_there(run: Run) -> None:
    """Members end one by one, and each reads the prompt of its group."""
    await run.accept(a_group(members=3))
    await ask(run.client, "DEL", run.audit.keys.group("run1.e0-i0.0"))

    assert (await retention(run).drop_unowned(["b:run1.e0-i0.0:prompt"]))[0] == 0

    for member in range(3):
        await ask(run.client, "DEL", run.audit.keys.job(f"run1.e0-i0.0.{member}"))
    assert (await retention(run).drop_unowned(["b:run1.e0-i0.0:prompt"]))[0] == 1
    await ask(run.client, "DEL", run.audit.keys.run("run1"))


@pytest.mark.parametrize("short", ["s:run", "s:results:run1", "r:run1", "open:run1", "q:run1", "meta", "b:odd", "b:a:b:c:d", "st:run1:1"])
async def test_a_key_of_another_kind_is_never_removed_whoever_proposes_it(run: Run, short: str) -> None:
    await run.accept(a_unit(), window=0)
    is_planted = await ask(run.client, "SET", run.audit.keys.key(short), "x", "NX", "EX", 60)

    assert await retention(run).drop_unowned([short]) == (0, 0)

    assert await ask(run.client, "EXISTS", run.audit.keys.key(short)) == 1
    if is_planted:
        await ask(run.client, "DEL", run.audit.keys.key(short))


# ---- runs


async def closed_run(connect: Connect, janitor: Janitor, name: str = "gone") -> Run:
    """A run with a record that nobody read, closed by a janitor a second ago."""
    run = await connect(name, ttl_s=3600)
    await run.accept(a_group(name, members=2), a_unit(name, prompt="single"), window=0)
    keys = run.audit.keys
    await ask(run.client, "ZADD", keys.steps(name), 1, "1")
    for key in (keys.steps(name), keys.step(name, 1)):
        await ask(run.client, "HSET", keys.step(name, 1), "target", 1)
        await ask(run.client, "PEXPIRE", key, 3_600_000)
    await ask(run.client, "HINCRBY", keys.run(name), "contact", -3_601_000)
    await janitor.round(quiet=False)
    await ask(run.client, "HINCRBY", keys.run(name), "closed", -1000)
    return run


@pytest.fixture
def janitor(connect: Connect, scripts: object, settings: object) -> Janitor:
    from pipeline.scripts import Scripts
    from pipeline.settings import QueueSettings

    assert isinstance(scripts, Scripts)
    assert isinstance(settings, QueueSettings)
    return Janitor(scripts.run_script.client, scripts, scripts.keys, settings, "janitor-1")


async def test_a_run_is_forgotten_so_long_after_its_close_and_its_jobs_are_unowned_then(connect: Connect, janitor: Janitor) -> None:
    run = await closed_run(connect, janitor)
    other = await connect("other")
    await other.accept(a_group("other"))

    assert await retention(run).forget_run("gone", closed_ms=60_000) is None
    would = await retention(run, dry_run=True).forget_run("gone", closed_ms=500)
    assert await run.audit.results("gone")
    forgotten = await retention(run).forget_run("gone", closed_ms=500)

    assert would is not None
    assert forgotten is not None
    assert (forgotten.run, forgotten.records, would.records) == ("gone", 4, 4)  # a note and three cancelled jobs
    assert await retention(run).forget_run("gone", closed_ms=500) is None
    assert [word.decode() for word in await ask(run.client, "ZRANGE", run.audit.keys.runs, 0, -1)] == ["other"]
    left = await all_bodies(run)
    assert any("gone" in key for key in left)
    await retention(run).drop_unowned(left)
    assert [key for key in await keys_of(run, "") if "gone" in key] == []
    assert await other.states() == {"ready": 8}


async def test_a_trainer_that_came_back_keeps_its_run(connect: Connect, janitor: Janitor) -> None:
    run = await closed_run(connect, janitor)
    await connect("gone", nonce="again", ttl_s=3600)
    before = await keys_of(run, "")

    assert await retention(run).forget_run("gone", closed_ms=0) is None
    assert await retention(run).drop_unowned(await all_bodies(run)) == (0, 0)

    assert await keys_of(run, "") == before


async def test_a_run_that_a_person_cancelled_or_that_lives_is_not_forgotten(connect: Connect) -> None:
    run = await connect("lives")

    assert await retention(run).forget_run("lives", closed_ms=0) is None
    assert await retention(run).forget_run("never-was", closed_ms=0) is None


# ---- streams


async def events(run: Run, stream: str, count: int, *, first_ms: int = 1) -> list[str]:
    """Entries of long ago, a millisecond apart."""
    ids = [f"{first_ms + number}-0" for number in range(count)]
    for entry in ids:
        await ask(run.client, "XADD", run.audit.keys.key(stream), entry, "kind", "x")
    return ids


async def left_in(run: Run, stream: str) -> int:
    return int(await ask(run.client, "XLEN", run.audit.keys.key(stream)))


async def test_old_entries_go_only_when_every_group_has_read_and_acknowledged_them(run: Run) -> None:
    key = run.audit.keys.reward
    ids = await events(run, "s:reward", 500)
    for group in ("fast", "slow"):
        await ask(run.client, "XGROUP", "CREATE", key, group, "0")
    await ask(run.client, "XREADGROUP", "GROUP", "fast", "c", "COUNT", 500, "NOACK", "STREAMS", key, ">")
    await ask(run.client, "XREADGROUP", "GROUP", "slow", "c", "COUNT", 300, "STREAMS", key, ">")
    await ask(run.client, "XACK", key, "slow", *ids[:150])

    trimmed = 0
    more = True
    while more:
        went, more = await retention(run).trim_stream("s:reward", older_ms=1000)
        trimmed += went

    left = [entry.decode() for entry, _ in await ask(run.client, "XRANGE", key, "-", "+")]
    assert 0 < trimmed <= 150
    assert left == ids[trimmed:]


async def test_young_entries_stay_and_a_dry_run_only_counts(run: Run) -> None:
    await events(run, "s:dead", 300)
    await ask(run.client, "XADD", run.audit.keys.dead, "*", "kind", "young")

    counted, _ = await retention(run, dry_run=True).trim_stream("s:dead", older_ms=60_000)
    assert (counted, await left_in(run, "s:dead")) == (300, 301)
    went, _ = await retention(run).trim_stream("s:dead", older_ms=60_000)

    assert went > 0
    assert await left_in(run, "s:dead") == 301 - went


async def test_streams_that_hold_work_or_results_are_refused(run: Run) -> None:
    from redis import ResponseError

    await run.accept(a_unit())
    for stream in ("s:init", "s:results:run1"):
        with pytest.raises(ResponseError, match="no stream that may be trimmed"):
            await retention(run).trim_stream(stream, older_ms=0)
    assert await left_in(run, "s:init") == 1
