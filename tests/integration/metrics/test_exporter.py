"""The exporter against real servers: what it says of a pipeline, which one of two reads, and what is said without Redis."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from ops.metrics.definitions import OF_THE_QUEUE
from ops.metrics.exporter import GOOD_S, Exporter
from ops.redis.users import roles
from ops.status.look import look_and_judge
from pipeline.inference_pool.records import Server
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, command_client, redis_now_ms
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, a_template, a_unit
from tests.integration.metrics.scraping import samples
from tests.integration.status import staging
from tests.integration.status.staging import LONG_MS, RUN, Staged

pytestmark = pytest.mark.one_server
MakeServer = Callable[..., PrivateServer]
PATIENCE_S = 30.0
"""The machine is shared, and these servers answer."""
NOT_ALWAYS_KNOWN = {"rollstream_stage_ended_jobs_per_second"}
"""Told from samples of a minute."""


async def an_exporter(settings: QueueSettings, *, patience_s: float = PATIENCE_S) -> Exporter:
    """One that has done its first round."""
    exporter = Exporter(settings, patience_s=patience_s)
    exporter.leadership.url = "http://127.0.0.1:1"
    await exporter.leadership.look()
    return exporter


async def scraped(exporter: Exporter) -> Mapping[str, float]:
    """A scrape for which it looks anew."""
    exporter._found_s -= GOOD_S
    return samples(await exporter.text())


@asynccontextmanager
async def staged_on(server: PrivateServer) -> AsyncIterator[Staged]:
    settings = QueueSettings(redis_url=server.url)
    client = command_client(settings)
    yield Staged(settings, client)
    await client.aclose()


async def a_node(staged: Staged, **fields: object) -> None:
    """Its launcher has just spoken."""
    now_ms = await redis_now_ms(staged.client)
    said = {
        "boot": "b",
        "state": "up",
        "beat": now_ms,
        "lease": LONG_MS,
        "clock": now_ms + 250,
        "version": "0.0.9",
        "until": now_ms + LONG_MS,
        "slots.run": 64,
        "crashes": 2,
        "scratch.free": 5_000,
        "images.free": 6_000,
        "degraded": "",
        **fields,
    }
    await ask(staged.client, "HSET", staged.keys.launched_node("n1"), *(str(word) for pair in said.items() for word in pair))
    await ask(staged.client, "PEXPIRE", staged.keys.launched_node("n1"), LONG_MS)
    await ask(staged.client, "ZADD", staged.keys.launchers, now_ms, "n1")
    await ask(staged.client, "PEXPIRE", staged.keys.launchers, LONG_MS)


async def test_all_of_the_list_is_said_of_a_pipeline_and_agrees_with_what_was_done(settings: QueueSettings, client: AsyncClient) -> None:
    """Four jobs: one waits in INIT, two are at work in RUN, one is dead. A server that is not there, a node that is degraded."""
    staged = Staged(settings, client)
    await staged.begin()
    await staged.pool.attach(RUN, [Server(staging.SERVER)])
    init, run = staged.workers[Stage.INIT], staged.workers[Stage.RUN]
    first, second, third = await init.take(3)
    await init.hand_off(first, second)
    await run.take()
    await init.give_up(third, kind="dead", why="handler: ValueError: by hand")
    await a_node(staged, degraded="3 sandboxes in a row did not start")

    found = await scraped(await an_exporter(settings))

    said = {name.partition("{")[0] for name in found}
    assert {definition.name for definition in OF_THE_QUEUE} - said <= NOT_ALWAYS_KNOWN | {
        "rollstream_redis_disk_free_bytes",
        "rollstream_run_model_kv_used_ratio",
    }
    expected = {
        "rollstream_exporter_leader": 1,
        "rollstream_redis_up": 1,
        "rollstream_redis_writable": 1,
        'rollstream_verdict{verdict="degraded"}': 1,
        'rollstream_causes{cause="node_degraded"}': 1,
        'rollstream_causes{cause="dead_letters"}': 1,
        'rollstream_causes{cause="no_worker"}': 0,
        'rollstream_stage_waiting_jobs{stage="init"}': 1,
        'rollstream_stage_held_jobs{stage="run"}': 2,
        'rollstream_stage_workers{stage="eval"}': 1,
        'rollstream_stage_slots{stage="run"}': 4,
        "rollstream_dead_letters": 1,
        "rollstream_dead_letters_total": 1,
        'rollstream_dead_letters_recent{kind="other"}': 1,
        'rollstream_runs{state="open"}': 1,
        'rollstream_run_accepted_jobs_total{run="run1"}': 4,
        'rollstream_run_in_flight_jobs{run="run1"}': 3,
        'rollstream_run_ended_jobs_total{outcome="infra_failure",run="run1"}': 1,
        'rollstream_run_ended_jobs_total{outcome="ok",run="run1"}': 0,
        'rollstream_run_unaccounted_jobs{run="run1"}': 0,
        'rollstream_shard_astray_jobs{shard="0"}': 0,
        'rollstream_run_unread_results{run="run1"}': 1,
        'rollstream_nodes{state="up"}': 1,
        'rollstream_node_up{node="n1"}': 1,
        'rollstream_node_failed{node="n1"}': 0,
        'rollstream_node_degraded{node="n1"}': 1,
        'rollstream_node_slots{node="n1",stage="run"}': 64,
        'rollstream_node_crashes_total{node="n1"}': 2,
        'rollstream_node_disk_free_bytes{disk="scratch",node="n1"}': 5_000,
        "rollstream_software_versions": 2,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found['rollstream_stage_oldest_waiting_seconds{stage="init"}'] > 0
    assert found['rollstream_run_unread_oldest_seconds{run="run1"}'] > 0


async def test_a_job_that_is_missing_and_one_that_was_counted_twice_are_told(settings: QueueSettings, client: AsyncClient) -> None:
    staged = Staged(settings, client)
    await staged.begin()
    held = await staged.at_run()
    exporter, run = await an_exporter(settings), staged.keys.run(RUN)

    async def off() -> tuple[float, float]:
        found = await scraped(exporter)
        return found[f'rollstream_run_unaccounted_jobs{{run="{RUN}"}}'], found['rollstream_shard_astray_jobs{shard="0"}']

    whole = await off()
    await ask(client, "HINCRBY", run, "out.ok", 1)
    twice = await off()
    await ask(client, "HINCRBY", run, "out.ok", -2)
    missing = await off()
    await ask(client, "HINCRBY", run, "out.ok", 1)
    await ask(client, "XDEL", staged.keys.stage_stream(Stage.RUN), held[0].entry)
    in_no_stream = await off()

    assert (whole, twice, missing, in_no_stream) == ((0, 0), (-1, 0), (1, 0), (0, 1))


@pytest.mark.parametrize("field", ["accepted", "inflight"])
async def test_what_another_hand_wrote_into_runs_hides_only_those(settings: QueueSettings, client: AsyncClient, field: str) -> None:
    """A name that is no text was a traceback of `rollstream status` and a 500 of the exporter, so that no cause was told to anybody; a
    counter that is no number, too. Names that no run may have are not said: no label is made of them."""
    staged = Staged(settings, client)
    await staged.begin()
    await staged.scripts.connect_run("broken", nonce="trainer", ttl_s=3600)
    await ask(client, "HSET", staged.keys.run("broken"), field, "many")
    names = (b"b\xffd", b'evil"}\n# HELP{x="', b"../../etc")
    for name in names:
        await ask(client, "ZADD", staged.keys.runs, 1, name)
        await ask(client, "HSET", staged.keys.run("").encode() + name, "inc", 1, "st", "open")

    found = await scraped(await an_exporter(settings))
    facts = (await look_and_judge(settings, patience_s=PATIENCE_S))[1]
    await ask(client, "DEL", *(staged.keys.run("").encode() + name for name in names))

    assert found[f'rollstream_run_accepted_jobs_total{{run="{RUN}"}}'] == 4
    assert found["rollstream_runs_left_out"] >= 3
    assert not [name for name in found if "evil" in name or "etc" in name]
    assert 'rollstream_run_accepted_jobs_total{run="broken"}' not in found
    assert facts is not None


async def test_one_of_two_reads_and_the_other_takes_over(settings: QueueSettings, client: AsyncClient) -> None:
    await Staged(settings, client).begin()
    first, second = await an_exporter(settings), await an_exporter(settings)
    key = first.leadership._key

    before = await scraped(first), await scraped(second)
    await ask(client, "PEXPIRE", key, 0)  # as when the first one is silent for a lease
    await second.leadership.look()
    await first.leadership.look()
    after = await scraped(first), await scraped(second)
    await second.leadership.leave()
    await first.leadership.look()

    assert [found["rollstream_exporter_leader"] for found in (*before, *after)] == [1, 0, 0, 1]
    assert ['rollstream_runs{state="open"}' in found for found in (*before, *after)] == [True, False, False, True]
    assert all(found["rollstream_redis_up"] == 1 for found in (*before, *after))
    assert first.leadership.leads, "who ends as planned is not waited for"
    assert await ask(client, "GET", key) == f"{first.leadership.boot} http://127.0.0.1:1".encode()


async def test_without_redis_it_answers_and_says_so(make_server: MakeServer) -> None:
    server = make_server()
    async with staged_on(server) as staged:
        await staged.begin()
        exporter = await an_exporter(staged.settings, patience_s=1.0)
        server.kill()
        away = await scraped(exporter)
        late = await scraped(await an_exporter(staged.settings, patience_s=1.0))

    for found in (away, late):
        assert (found["rollstream_redis_up"], found["rollstream_exporter_leader"]) == (0, 0)
        assert found['rollstream_verdict{verdict="unreachable"}'] == 1
        assert found['rollstream_causes{cause="redis_unreachable"}'] == 1
        assert not [name for name in found if name.startswith(("rollstream_stage", "rollstream_run", "rollstream_redis_used"))]
    assert away["rollstream_look_failures_total"] == 1


async def test_a_redis_that_takes_no_writes_is_told_by_who_had_the_key_and_by_who_comes_then(make_server: MakeServer) -> None:
    server = make_server(extra=(("save", "3600 100000"),))
    async with staged_on(server) as staged:
        await staged.begin()
        before = await an_exporter(staged.settings)
        well = await scraped(before)
        await ask(staged.client, "PEXPIRE", before.leadership._key, 0)
        await staging.refuse_writes(staged)
        await before.leadership.look()
        broken, late = await scraped(before), await scraped(await an_exporter(staged.settings))

    assert (well["rollstream_redis_writable"], well['rollstream_redis_persistence_failed{kind="snapshot"}']) == (1, 0)
    for found in (broken, late):
        assert (found["rollstream_exporter_leader"], found["rollstream_redis_writable"]) == (1, 0)
        assert found['rollstream_causes{cause="redis_disk_full"}'] == 1
        assert found['rollstream_redis_persistence_failed{kind="snapshot"}'] == 1


async def test_a_full_redis_is_told_by_an_exporter_that_comes_then(make_server: MakeServer) -> None:
    """It refuses the key, as it refuses all that is new; jobs still end, so it counts as one that takes writes."""
    server = make_server(maxmemory_bytes=16 << 20)
    async with staged_on(server) as staged:
        await staging.memory_full(staged)
        (limit,) = {int(value) for name, value in (await ask(staged.client, "INFO", "memory")).items() if name == "used_memory"}
        await ask(staged.client, "CONFIG SET", "maxmemory", limit // 2)
        found = await scraped(await an_exporter(staged.settings))
        await ask(staged.client, "CONFIG SET", "maxmemory", 0)

    assert (found["rollstream_exporter_leader"], found["rollstream_redis_writable"]) == (1, 1)
    assert found['rollstream_causes{cause="redis_memory_full"}'] == 1


async def test_the_user_for_looking_may_lead_and_change_nothing_else(make_server: MakeServer) -> None:
    (ops,) = (role for role in roles("rs") if role.name == "ops")
    async with staged_on(make_server()) as staged:
        await staged.begin()
        looker = await staging.acl_user(staged, "ops", *ops.rules)
        exporter = await an_exporter(looker)
        found = await scraped(exporter)
        key = await ask(staged.client, "GET", exporter.leadership._key)
        await exporter.leadership.leave()
        dry = [
            await ask(staged.client, "ACL DRYRUN", "ops", *words)
            for words in (("SET", staged.keys.meta, "x"), ("PEXPIRE", staged.keys.run(RUN), "1"), ("SET", exporter.leadership._key, "x"))
        ]

    assert (found["rollstream_exporter_leader"], found["rollstream_look_refused_parts"]) == (1, 0)
    assert found[f'rollstream_run_accepted_jobs_total{{run="{RUN}"}}'] == 4
    if sys.platform == "linux":
        assert found["rollstream_redis_disk_free_bytes"] > 0, "it may not ask for the folder, and sees the process"
    assert key is not None
    assert ["permission" in str(word) or "can't run" in str(word) for word in dry] == [True, True, False]


@pytest.mark.parametrize("runs", [1, 6])
async def test_a_scrape_costs_what_the_decision_says(settings: QueueSettings, client: AsyncClient, runs: int) -> None:
    staged = Staged(settings, client)
    await staged.begin()
    await staged.pool.attach(RUN, [Server(staging.SERVER)])
    await a_node(staged)
    for number in range(runs - 1):
        run = f"more{number}"
        incarnation = await staged.scripts.connect_run(run, nonce="trainer", ttl_s=3600)
        units = [a_unit(run, "e0-i0")]
        await staged.scripts.accept(run, incarnation, a_template(), "t", b"\x00\x80", units, max_waiting=10**6, window=256)
    exporter = await an_exporter(settings)
    await scraped(exporter)

    async def commands(scrapes: int) -> int:
        before = int((await ask(client, "INFO", "stats"))["total_commands_processed"])
        for _ in range(scrapes):
            await exporter.text()
        return int((await ask(client, "INFO", "stats"))["total_commands_processed"]) - before - 1

    shared = await commands(3)
    exporter._found_s -= GOOD_S
    fresh = await commands(1)

    streams, workers, nodes = 3, 3, 1
    assert shared == 0
    assert 0 < fresh <= 65 + 4 * streams + workers + 2 * nodes + 35 * runs
