"""Broken keys, deleted streams, foreign entries, forgotten scripts: one thing breaks, nothing else is lost (promises 1 and 2)."""

from __future__ import annotations

import pytest

from pipeline.errors import BrokerMisused
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import JournalTurn, Scripts, source
from pipeline.scripts.calls import Held
from pipeline.testing import a_group, a_unit

from .conftest import Connect, Run


async def reconcile(run: Run) -> int:
    put_back, cursor = 0, "0"
    while True:
        cursor, back = await run.scripts.reconcile(run.name, cursor)
        put_back += back
        if cursor == "0":
            return put_back


async def test_jobs_of_a_deleted_stream_come_back(run: Run) -> None:
    """Claimable, delivered and running jobs are in the hash and in no stream. All come back, uncounted, once each."""
    await run.accept(a_group(members=6), window=4)
    init = run.worker(Stage.INIT, window=0)
    (running,) = await init.take(1)
    await init.deliver(1)
    await ask(run.client, "DEL", init.stream)

    assert await reconcile(run) == 4
    assert await reconcile(run) == 0

    assert await run.states() == {"waiting": 2, "ready": 4}
    assert await init.hand_off(running) == ["fenced"]
    job = await run.audit.job(running.job)
    assert (job["lost"], job["failed"]) == ("0", "0")


async def test_jobs_that_are_where_they_belong_are_left_alone(run: Run) -> None:
    await run.accept(a_group(members=4), a_unit(prompt="single"), window=4)
    init = run.worker(Stage.INIT, window=0)
    delayed, running = await init.take(2)
    await init.give_up(delayed, backoff_ms=60_000)
    before = await run.audit.stage_entries()

    assert await reconcile(run) == 0

    assert await run.audit.stage_entries() == before
    assert await init.renew(running) == (True, ["1"])


async def test_a_lost_queue_and_a_lost_list_of_retries_are_made_again(run: Run) -> None:
    await run.accept(a_group(members=4), window=2)
    init = run.worker(Stage.INIT, window=0)
    await init.give_up(*await init.take(1), backoff_ms=60_000)
    await ask(run.client, "DEL", run.audit.keys.queue("run1"), run.audit.keys.key("z:delay"))

    assert await reconcile(run) == 3

    assert await run.states() == {"ready": 4}


async def test_a_renewal_that_finds_no_entry_puts_the_job_back(run: Run) -> None:
    """The stream was deleted under a live worker. Its renewal was told that the job is lost and dropped it, while reconciliation left the
    job to its living worker: it was nobody's until its deadline."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    held = await worker.take()
    await ask(run.client, "DEL", worker.stream)

    assert await worker.renew(*held) == (True, ["0"])

    (again,) = await worker.take()
    assert again.attempt == 2


async def test_a_group_that_is_gone_costs_a_running_job_nothing(run: Run) -> None:
    """The consumer group was destroyed, the entry is still there. The lease goes on as soon as somebody has made the group again."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    held = await worker.take()
    await ask(run.client, "XGROUP", "DESTROY", worker.stream, "init")
    assert await worker.renew(*held) == (True, ["1"])

    await ask(run.client, "XGROUP", "CREATE", worker.stream, "init", "$")

    assert await worker.renew(*held) == (True, ["1"])
    assert [entry.pending_of for entry in await run.audit.stage_entries()] == ["w1"]
    assert await worker.hand_off(*held) == ["ok"]


async def test_a_lost_job_hash_ends_as_a_dead_letter_and_its_group_closes(connect: Connect) -> None:
    """Somebody deleted a job's hash, or wrote something else there. The member can never report; without a record of its own its group,
    and with it the step, would wait for ever."""
    run, group = await connect(), a_group(members=3)
    await run.accept(group, a_unit(prompt="single"))
    held = {job.job: job for job in await run.reach(Stage.EVAL)}
    await ask(run.client, "DEL", run.audit.keys.job(f"{group.id}.0"))
    await ask(run.client, "SET", run.audit.keys.job(f"{group.id}.1"), "x", "EX", 3600)
    await ask(run.client, "DEL", run.audit.keys.job("run1.single.0"))
    await run.worker(Stage.EVAL).settle(held[f"{group.id}.2"])

    await reconcile(run)
    await reconcile(run)

    records = {row["job"]: row["out"] for row in await run.audit.results("run1")}
    assert records == {
        f"{group.id}.0": "infra_failure",
        f"{group.id}.1": "infra_failure",
        f"{group.id}.2": "ok",
        "run1.single.0": "infra_failure",
    }
    assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "closed"
    assert len(await run.audit.entries(run.audit.keys.dead)) == 3
    # the bytes reserved for a single job stood only in the hash that is gone; the entries of all three are stray copies now
    assert await run.audit.counter("run1", "inflight") == 0
    worker = run.worker(Stage.EVAL)
    assert [begun.state for begun in await worker.begin(*await worker.own_pending())] == ["gone"] * 3


@pytest.mark.parametrize("stage", list(Stage))
async def test_a_job_key_of_another_type_hurts_that_job_only(run: Run, stage: Stage) -> None:
    """Something else overwrote one job's hash. A batch that names it does all the others; it ends as a dead letter as soon as its entry
    is begun or its lease runs out, and its group closes."""
    group = a_group(members=3)
    await run.accept(group)
    held = await run.reach(stage)
    worker = run.worker(stage)
    bad = held[1]
    await ask(run.client, "SET", run.audit.keys.job(bad.job), "something else", "EX", 3600)

    assert await worker.renew(*held) == (True, ["1", "0", "1"])
    assert await run.scripts.journal([JournalTurn(job.job, job.attempt, 0, b"t") for job in held], ttl_ms=60_000) == ["1", "0", "1"]
    assert await worker.settle(*held) == ["ok", "fenced", "ok"]
    assert await worker.hand_off(*held) == ["fenced"] * 3
    assert await worker.give_up(*held) == ["fenced"] * 3
    assert await worker.recover("idle", bad) == ["dead"]

    assert {row["job"]: row["out"] for row in await run.audit.results("run1")} == {
        held[0].job: "ok",
        bad.job: "infra_failure",
        held[2].job: "ok",
    }
    assert await run.audit.all_ended("run1", run.units) == []


async def test_a_job_key_of_another_type_ends_its_job_at_begin(run: Run) -> None:
    await run.accept(a_group(members=3))
    worker = run.worker(Stage.INIT)
    claims = await worker.deliver()
    await ask(run.client, "SET", run.audit.keys.job(claims[1].job), "something else", "EX", 3600)

    assert [begun.state for begun in await worker.begin(*claims)] == ["ok", "gone", "ok"]

    (record,) = await run.audit.results("run1")
    assert (record["job"], record["out"]) == (claims[1].job, "infra_failure")
    assert await run.audit.faults("run1", run.units) == []


async def test_a_waiting_job_whose_key_is_of_another_type_ends_at_admission(run: Run) -> None:
    group = a_group(members=4)
    await run.accept(group, window=0)
    await ask(run.client, "SET", run.audit.keys.job(f"{group.id}.1"), "something else", "EX", 3600)
    await ask(run.client, "DEL", run.audit.keys.job(f"{group.id}.2"))

    assert await run.scripts.admit(["none"], 10) == 2

    assert await run.audit.faults("run1", run.units) == []
    assert await run.states() == {"ready": 2, "done": 2}


async def test_a_batch_that_fails_half_way_has_done_its_first_half_wholly(run: Run, connect: Connect) -> None:
    """What a batch does to shared keys is gathered and done at its end. When a later job of the batch breaks (the results of its run
    cannot be written), that end must still come: the first job would otherwise have its record, and its entry still in the stream, its
    counters never lowered."""
    other = await connect("other")
    await run.accept(a_unit())
    await other.accept(a_unit("other"))
    held = sorted(await run.reach(Stage.EVAL), key=lambda job: job.job, reverse=True)
    assert [job.job.split(".")[0] for job in held] == ["run1", "other"]
    await ask(run.client, "SET", run.audit.keys.results("other"), "something else", "EX", 3600)
    worker = run.worker(Stage.EVAL)

    with pytest.raises(BrokerMisused, match="WRONGTYPE"):
        await worker.settle(*held)

    assert await run.states() == {"done": 1}
    assert [entry.job for entry in await run.audit.stage_entries()] == [held[1].job]
    assert await run.audit.counter("run1", "inflight") == 0
    await ask(run.client, "DEL", run.audit.keys.results("other"))
    assert await worker.settle(*held) == ["again", "ok"]


@pytest.mark.parametrize("key", ["s:run", "s:results:run1", "s:reward", "s:dead"])
async def test_a_stream_of_another_type_is_an_error_that_loses_nothing(run: Run, key: str) -> None:
    """Something else stands where a stream should be. The call says so, and the job is where it was; when the key is put right it goes
    on. The wake-up stream is no record: a settle does not fail for it."""
    await run.accept(a_unit())
    init = run.worker(Stage.INIT)
    held = await init.take()
    full = run.audit.keys.key(key)
    await ask(run.client, "SET", full, "something else", "EX", 3600)

    if key == "s:run":
        with pytest.raises(BrokerMisused, match="WRONGTYPE"):
            await init.hand_off(*held)
    elif key == "s:results:run1":
        with pytest.raises(BrokerMisused, match="WRONGTYPE"):
            await init.settle(*held)
    await ask(run.client, "DEL", full) if key in ("s:run", "s:results:run1") else None

    if key == "s:run":
        assert await init.renew(*held) == (True, ["1"])
        assert await init.hand_off(*held) == ["ok"]
    elif key == "s:dead":
        assert await init.give_up(*held, kind="dead") == ["dead"]
    else:
        assert await init.settle(*held) == ["ok"]
    if key != "s:run":
        assert await run.states() == {"done": 1}
    await ask(run.client, "DEL", full) if key in ("s:reward", "s:dead") else None


async def test_a_counter_of_another_type_does_not_stop_a_settle(run: Run) -> None:
    """Figures are not the record: `out.ok` holds a word."""
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    await ask(run.client, "HSET", run.audit.keys.run("run1"), "out.ok", "many")

    assert await run.worker(Stage.EVAL).settle(held) == ["ok"]


async def test_an_entry_that_is_no_job_keeps_its_bytes_as_a_dead_letter(run: Run) -> None:
    entry = await ask(run.client, "XADD", run.audit.keys.stage_stream(Stage.INIT), "*", "payload", b"\xff\xff\x00")
    worker = run.worker(Stage.INIT)
    assert await worker.deliver() == []

    for _ in range(2):
        await run.scripts.reject("s:init", Stage.INIT, entry.decode(), "no header of ours", b"payload\n\xff\xff\x00")

    ((_, dead),) = await ask(run.client, "XRANGE", run.audit.keys.dead, "-", "+")
    assert (dead[b"why"], dead[b"raw"]) == (b"no header of ours", b"payload\n\xff\xff\x00")
    assert dead[b"entry"] == b"s:init/" + entry
    assert await run.audit.stage_entries() == []


async def test_an_entry_that_is_no_job_and_whose_reader_died_keeps_its_bytes(run: Run) -> None:
    """The reader died between the delivery and its rejection; its successor finds the entry among what was pending."""
    entry = await ask(run.client, "XADD", run.audit.keys.stage_stream(Stage.INIT), "*", "payload", b"\xff\xff\x00")
    worker = run.worker(Stage.INIT)
    await worker.deliver()
    found = Held("s:init", entry.decode(), "", 0)

    assert await worker.recover("restart", found) == ["stale"]
    assert await worker.recover("restart", found) == ["stale"]

    ((_, dead),) = await ask(run.client, "XRANGE", run.audit.keys.dead, "-", "+")
    assert dead[b"raw"] == b"payload\n\xff\xff\x00"
    assert await run.audit.stage_entries() == []


async def test_rejecting_a_job_gives_it_its_terminal_record(run: Run) -> None:
    """A body that cannot be decoded, an end that Redis refuses: the entry is rejected, and since it names an accepted job that job ends
    (promise 1)."""
    group = a_group(members=1)
    await run.accept(group)
    (held,) = await run.reach(Stage.RUN)

    for _ in range(2):
        await run.scripts.reject(held.stream, Stage.RUN, held.entry, "damaged body", b"raw")

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"], record["att"]) == ("infra_failure", "damaged body", "2")
    ((_, dead),) = await ask(run.client, "XRANGE", run.audit.keys.dead, "-", "+")
    assert dead[b"raw"] == b"raw"
    assert await run.audit.all_ended("run1", run.units) == []


async def test_rejecting_an_old_copy_does_not_end_the_job(run: Run) -> None:
    await run.accept(a_unit())
    (old,) = await run.reach(Stage.RUN)
    worker = run.worker(Stage.RUN)
    await worker.recover("idle", old)

    await run.scripts.reject(old.stream, Stage.RUN, old.entry, "late", b"")

    assert await run.states() == {"ready": 1}


async def test_a_stray_copy_is_removed_at_begin(run: Run) -> None:
    """An entry put there by hand, or left by a replica that went back in time, names a job that is elsewhere."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    (real,) = await worker.deliver()
    await ask(run.client, "XADD", worker.stream, "*", "job", real.job, "run", "run1")
    await ask(run.client, "XADD", worker.stream, "*", "job", "run1.nobody.0", "run", "run1")
    strays = await worker.deliver()

    assert [begun.state for begun in await worker.begin(*strays)] == ["gone", "gone"]

    assert len(await run.audit.stage_entries()) == 1


async def test_a_server_that_forgot_its_scripts_is_given_them_again(run: Run, client: AsyncClient) -> None:
    """Restart, failover and SCRIPT FLUSH empty the cache; EVALSHA fails with NOSCRIPT."""
    await run.accept(a_unit())
    await ask(client, "SCRIPT FLUSH")
    worker = run.worker(Stage.INIT)
    held = await worker.take()
    await ask(client, "SCRIPT FLUSH")

    assert await worker.hand_off(*held) == ["ok"]


async def test_no_script_says_anything_but_its_reply_when_nothing_is_there(scripts: Scripts) -> None:
    """On an empty server every housekeeping call answers that there is nothing to do."""
    assert await scripts.promote() == (0, None)
    assert await scripts.expire_deadlines() == (0, 0)
    assert await scripts.admit(["none", "isolated"], 10) == 0
    assert await scripts.reconcile("run1") == ("0", 0)
    assert await scripts.sweep_lane("s:run:@n9", "n9") == (0, 0, True)
    assert await scripts.cancel("run", ["run1"], "user") == {"settled": 0, "running": 0, "done": 0, "unknown": 1}
    assert source("promote").startswith("#!lua flags=allow-oom\n")
