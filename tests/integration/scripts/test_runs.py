"""Runs and their trainers: incarnations fence each other, acks let go of what has ended and of nothing else, keys live as long as they
must."""

from __future__ import annotations

import pytest

from pipeline.errors import RunClosed, StaleIncarnation
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing import a_group, a_template, a_unit

from .conftest import Connect, Run


async def test_an_older_incarnation_may_not_change_its_run_any_more(connect: Connect) -> None:
    """A trainer that was thought dead wakes up beside the one that resumed."""
    old = await connect(nonce="first")
    await old.accept(a_unit(prompt="before"))
    new = await connect(nonce="second")

    with pytest.raises(StaleIncarnation):
        await old.accept(a_unit(prompt="late"))
    with pytest.raises(StaleIncarnation):
        await old.scripts.touch_run("run1", old.incarnation)
    with pytest.raises(StaleIncarnation):
        await old.scripts.ack("run1", old.incarnation, [("", "job", "run1.before.0")])

    assert await new.accept(a_unit(prompt="before"), a_unit(prompt="late")) == [False, True]
    await new.scripts.touch_run("run1", new.incarnation)


async def test_a_trainer_that_repeats_its_connect_late_does_not_take_the_run_back_unseen(connect: Connect) -> None:
    first, second = await connect(nonce="first"), await connect(nonce="second")

    again = await connect(nonce="first")

    assert (first.incarnation, second.incarnation, again.incarnation) == (1, 2, 3)
    with pytest.raises(StaleIncarnation):
        await second.accept(a_unit())


async def test_an_unknown_run_takes_nothing(run: Run) -> None:
    with pytest.raises(RunClosed, match="unknown"):
        await run.scripts.touch_run("nobody", 1)
    with pytest.raises(RunClosed, match="unknown"):
        await run.scripts.ack("nobody", 1, [("", "job", "nobody.p.0")])


async def test_a_cancelled_run_is_closed_until_a_trainer_takes_it_again(connect: Connect) -> None:
    run = await connect()
    await run.scripts.cancel("run", ["run1"], "user")
    with pytest.raises(RunClosed, match=r"cancelled \(user\)"):
        await run.accept(a_unit())

    again = await connect(nonce="again")

    assert await again.accept(a_unit()) == [True]
    (held,) = await again.reach(Stage.EVAL)
    assert await again.worker(Stage.EVAL).settle(held) == ["ok"]


async def test_an_ack_leaves_a_tombstone_and_a_second_accept_says_so(run: Run) -> None:
    """The trainer resubmits what it is not sure of. What it has consumed must not run again."""
    group, single = a_group(members=2), a_unit(prompt="single")
    await run.accept(group, single)
    await run.worker(Stage.EVAL).settle(*await run.reach(Stage.EVAL), body=b"grade")
    records = await run.audit.results("run1")
    (alone,) = [row for row in records if not row["grp"]]

    assert await run.scripts.ack("run1", run.incarnation, [(alone["entry"], "job", alone["job"]), ("", "group", group.id)]) == 3

    assert await run.accept(group, single) == [False, False]
    left = sorted(run.audit.keys.short(key.decode()) for key in await ask(run.client, "KEYS", f"{run.audit.keys.tag}:*"))
    assert not [key for key in left if key.startswith(("j:", "g:", "b:"))]
    (tombstones,) = [key for key in left if key.startswith("done:")]
    assert await run.client.smembers(run.audit.keys.key(tombstones)) == {group.id.encode(), single.id.encode()}
    assert 86_400 < await run.client.ttl(run.audit.keys.key(tombstones)) <= 2 * 86_400
    run.units = []


async def test_acking_what_has_not_ended_changes_nothing(run: Run) -> None:
    await run.accept(a_unit(), a_group(prompt="g", members=2))
    held = await run.worker(Stage.INIT).take(2)
    before = await run.audit.job(held[0].job)

    for entry in ("", "1-1"):
        assert await run.scripts.ack("run1", run.incarnation, [(entry, "job", held[0].job), (entry, "group", "run1.g.0")]) == 0

    assert await run.audit.job(held[0].job) == before
    assert not await run.client.keys(f"{run.audit.keys.tag}:done:*")


async def test_a_record_whose_job_hash_expired_is_still_removed(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(held)
    (record,) = await run.audit.results("run1")
    await ask(run.client, "DEL", run.audit.keys.job(held.job))

    assert await run.scripts.ack("run1", run.incarnation, [(record["entry"], "job", held.job)]) == 1
    run.units = []


async def test_keys_of_an_open_job_outlive_its_deadline_and_so_do_those_of_its_run(connect: Connect) -> None:
    """A trainer connects with a short time to live and submits long jobs. Its run's hash expired under them: counters were written into a
    hash without expiry, and their results had no reader any more."""
    run = await connect(ttl_s=60)
    await run.accept(a_group(members=2), template=a_template(wall_s=7200.0), window=1)
    await run.scripts.touch_run("run1", run.incarnation)
    (held,) = await run.worker(Stage.INIT, window=0).take()
    await run.worker(Stage.INIT).hand_off(held)

    keys = run.audit.keys
    open_keys = [
        keys.run("run1"),
        keys.open_units("run1"),
        keys.queue("run1"),
        keys.job(held.job),
        keys.group("run1.e0-i0.0"),
        keys.prompt("run1.e0-i0.0"),
        keys.template("run1", "tpl1"),
        keys.body(held.job, held.attempt, "init"),
    ]
    for key in open_keys:
        assert await run.client.ttl(key) > 7200, key


async def test_a_run_whose_hash_is_gone_is_not_made_again_by_its_jobs(connect: Connect) -> None:
    """Somebody deleted the run. Its jobs still end, and no hash without state and expiry appears in its place."""
    run = await connect()
    await run.accept(a_group(members=3), window=1)
    (held,) = await run.worker(Stage.INIT, window=0).take()
    await ask(run.client, "DEL", run.audit.keys.run("run1"))

    await run.worker(Stage.INIT).settle(held)
    await run.scripts.admit(["none"], 1)
    await run.scripts.cancel("job", ["run1.e0-i0.0.1", "run1.e0-i0.0.2"], "user")

    assert len(await run.audit.results("run1")) == 3
    assert not await run.client.exists(run.audit.keys.run("run1"))


async def test_runs_do_not_see_each_other(connect: Connect) -> None:
    one, two = await connect("one"), await connect("two")
    await one.accept(a_group("one", members=2))
    await two.accept(a_group("two", members=2))

    await one.scripts.cancel("run", ["one"], "user")

    assert await one.states() == {"done": 2}
    assert await two.states() == {"ready": 2}
    assert [row["run"] for row in await one.audit.results("one")] == ["one", "one"]
    assert await two.worker(Stage.INIT).settle(*await two.worker(Stage.INIT).take()) == ["ok", "ok"]


async def test_headers_are_plain_text(run: Run) -> None:
    """Promise 11: what a person needs to see is readable with `redis-cli`."""
    await run.accept(a_group(members=1))
    init = run.worker(Stage.INIT)
    ((_, header),) = await ask(run.client, "XRANGE", init.stream, "-", "+")
    assert {name.decode(): value.decode() for name, value in header.items()} == {
        "job": "run1.e0-i0.0.0",
        "run": "run1",
        "grp": "run1.e0-i0.0",
        "n": "0",
        "task": "math",
        "att": "0",
    }
    await run.worker(Stage.EVAL).settle(*await run.reach(Stage.EVAL), body=b"\x00\xff")
    for stream in (run.audit.keys.results("run1"), run.audit.keys.reward):
        for _, row in await ask(run.client, "XRANGE", stream, "-", "+"):
            for value in row.values():
                assert value.decode().isprintable()
