"""Promise 2: only the fenced attempt's output is kept, and no later attempt meets what an earlier one changed.

A zombie is a worker that was given up for dead (stopped, cut off, starved) and goes on: it still holds an old entry id and an old attempt.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import JournalTurn
from pipeline.scripts.calls import Held
from pipeline.testing import a_group, a_settlement, a_unit

from .conftest import Run


async def snapshot(run: Run, job: str) -> object:
    """Everything a zombie could have changed."""
    keys = run.audit.keys
    bodies = [key async for key in run.client.scan_iter(match=keys.key("b", job, "*"), count=1000)]
    return (
        await run.audit.job(job),
        await run.audit.stage_entries(),
        await run.audit.results(run.name),
        sorted([(key, await ask(run.client, "TYPE", key)) for key in bodies]),
        await run.audit.counter(run.name, "inflight"),
        await run.audit.entries(keys.dead) if await ask(run.client, "EXISTS", keys.dead) else [],
    )


@pytest.fixture
async def zombie_and_successor(run: Run) -> tuple[Held, Held]:
    """An attempt in RUN that lost its lease, and the attempt that has the job now."""
    await run.accept(a_group(members=1))
    (old,) = await run.reach(Stage.RUN)
    assert await run.worker(Stage.RUN, "janitor").recover("idle", old) == ["lost"]
    (new,) = await run.worker(Stage.RUN, "w2").take()
    assert (old.attempt, new.attempt) == (2, 3)
    return old, new


async def test_a_zombie_changes_nothing_in_any_script(run: Run, zombie_and_successor: tuple[Held, Held]) -> None:
    """Each script, called by the zombie with what it still believes, and with the successor's entry id or attempt mixed in: a fence of
    only one of the two would let a guess through."""
    old, new = zombie_and_successor
    worker = run.worker(Stage.RUN, "w1")
    before = await snapshot(run, old.job)

    for held in (old, replace(old, entry=new.entry, stream=new.stream), replace(old, attempt=new.attempt)):
        assert await worker.hand_off(held, body=b"zombie's") == ["fenced"]
        assert await worker.settle(held, settlement=a_settlement(0.0), body=b"zombie's") == ["fenced"]
        for kind in ("failed", "lost", "back", "dead"):
            assert await worker.give_up(held, kind=kind) == ["fenced"]
        assert await worker.renew(held) == (True, ["0"])
    assert await run.scripts.journal([JournalTurn(old.job, old.attempt, 0, b"zombie's")], ttl_ms=1000) == ["0"]
    assert await worker.recover("idle", old) in (["fresh"], ["stale"])
    assert await worker.recover("restart", old) in (["fresh"], ["stale"])

    assert await snapshot(run, old.job) == before
    assert await run.worker(Stage.RUN, "w2").hand_off(new) == ["ok"]


async def test_a_zombie_cannot_take_the_entry_back_by_renewing(run: Run, zombie_and_successor: tuple[Held, Held]) -> None:
    """An unchecked XCLAIM is how a zombie takes a successor's entry away; the check and the claim are one script."""
    _, new = zombie_and_successor

    await run.worker(Stage.RUN, "w1").renew(replace(new, attempt=2), new)

    assert [entry.pending_of for entry in await run.audit.stage_entries()] == ["w2"]


async def test_a_zombie_of_a_settled_job_adds_no_record(run: Run) -> None:
    await run.accept(a_unit())
    (old,) = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)
    await worker.recover("idle", old)
    (new,) = await run.worker(Stage.EVAL, "w2").take()
    assert await run.worker(Stage.EVAL, "w2").settle(new, settlement=a_settlement(1.0)) == ["ok"]

    assert await worker.settle(old, settlement=a_settlement(0.0)) == ["fenced"]
    assert await worker.hand_off(old) == ["fenced"]
    assert await worker.give_up(old, kind="dead") == ["fenced"]

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["rew"], record["att"]) == ("ok", "1.0", "4")


async def test_a_zombie_of_an_acked_job_brings_nothing_back(run: Run) -> None:
    await run.accept(a_unit())
    (old,) = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)
    await worker.settle(old)
    (record,) = await run.audit.results("run1")
    await run.scripts.ack("run1", run.incarnation, [(record["entry"], "job", old.job)])
    run.units = []

    assert await worker.settle(old) == ["fenced"]
    assert await worker.hand_off(old) == ["fenced"]
    assert await worker.give_up(old) == ["fenced"]
    assert await run.scripts.journal([JournalTurn(old.job, old.attempt, 0, b"")], ttl_ms=1000) == ["0"]
    assert await worker.renew(old) == (True, ["0"])

    assert await run.audit.job(old.job) == {}
    assert await run.audit.results("run1") == []


async def test_an_attempt_is_a_new_number_in_every_stage_and_every_try(run: Run, client: AsyncClient) -> None:
    """The prototype set the attempt back to 0 at each hand-off: INIT's attempt 1 and RUN's attempt 1 were the same token, and the same
    sandbox name."""
    await run.accept(a_unit())
    seen = []
    for stage in Stage:
        worker = run.worker(stage)
        (first,) = await worker.take()
        assert await worker.give_up(first, kind="back") == ["back"]
        (second,) = await worker.take()
        seen += [first.attempt, second.attempt]
        if stage is not Stage.EVAL:
            await worker.hand_off(second)

    assert seen == [1, 2, 3, 4, 5, 6]


async def test_what_an_earlier_attempt_made_is_not_what_the_later_one_leaves(run: Run, client: AsyncClient) -> None:
    """RUN's output is in a key under its attempt. EVAL sends the job back to RUN; the second output does not overwrite the first while
    somebody may read it, and the first goes away when nothing points to it any more."""
    await run.accept(a_unit())
    (first,) = await run.reach(Stage.RUN)
    agent = run.worker(Stage.RUN)
    await agent.hand_off(first, body=b"first")
    grader = run.worker(Stage.EVAL)
    (grading,) = await grader.take()
    assert await grader.give_up(grading, retry_stage="run") == ["retry"]
    (second,) = await agent.take()
    await agent.hand_off(second, body=b"second")

    keys = run.audit.keys
    assert await ask(client, "GET", keys.body(first.job, second.attempt, "run")) == b"second"
    assert await ask(client, "EXISTS", keys.body(first.job, first.attempt, "run")) == 0


async def test_two_boots_of_one_name(run: Run, client: AsyncClient) -> None:
    """A worker is stopped (SIGSTOP) until its name's lock lapses; its successor takes the stable name, finds what the first boot had
    begun, and puts it back. Then the first one wakes: it may neither begin nor renew, and nothing it delivers counts."""
    await run.accept(a_group(members=2))
    first, second = run.worker(Stage.INIT, "w", "boot1"), run.worker(Stage.INIT, "w", "boot2")
    assert await first.take_name() is None
    (begun,) = await first.take(1)
    (delivered,) = await first.deliver(1)

    assert (await second.take_name() or ("", 0))[0] == "boot1"
    second = await run.successor(first, "boot2")
    own = await second.own_pending()
    assert sorted(await second.recover("restart", *own)) == ["lost", "ready"]

    assert [answer.state for answer in await first.begin(delivered)] == ["usurped"]
    assert await first.renew(begun) == (False, ["0"])
    assert await first.hand_off(begun) == ["fenced"]
    assert len(await second.take()) == 2


async def test_an_old_boot_that_wakes_cannot_recover_what_its_successor_runs(run: Run, client: AsyncClient) -> None:
    """`restart` believes that everything pending under its name and not of its own boot was left behind. A first boot that was stopped in
    the middle of its start woke after its successor had begun jobs, listed them as its own name's, and put them back from under a live
    worker."""
    await run.accept(a_group(members=2))
    first = run.worker(Stage.INIT, "w", "boot1")
    await first.take_name()
    second = await run.successor(first, "boot2")
    held = await second.take()

    answer = await first.recover("restart", *await first.own_pending())

    assert answer == ["usurped", "usurped"]
    assert await second.renew(*held) == (True, ["1", "1"])


async def test_a_lock_that_lapsed_is_taken_again_by_the_boot_that_had_it(run: Run, client: AsyncClient) -> None:
    """Redis was away for longer than the lock lives. Nobody took the name meanwhile, so its owner goes on with its jobs instead of
    dropping them."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT, "w", "boot1")
    await worker.take_name()
    held = await worker.take()
    await ask(client, "DEL", run.audit.keys.worker("w"))

    assert await worker.renew(*held) == (True, ["1"])

    assert (await run.audit.hash(run.audit.keys.worker("w")))["boot"] == "boot1"
    holder, lapses_s = await run.worker(Stage.INIT, "w", "boot2").take_name() or ("", 0.0)
    assert holder == "boot1"
    assert lapses_s == pytest.approx(30, abs=1)


async def test_a_lock_that_lapsed_comes_back_whole(run: Run, client: AsyncClient) -> None:
    """The boot took its name again with its boot id alone, at the next `begin` or `renew`: who looked at the worker from then on did not
    see where it ran, how many slots it had, or of which version it was."""
    await run.accept(a_unit())
    worker, key = run.worker(Stage.INIT, "w", "boot1"), run.audit.keys.worker("w")
    await worker.take_name()
    before = await run.audit.hash(key)
    await ask(client, "DEL", key)

    held = await worker.take()
    await worker.renew(*held)

    after = await run.audit.hash(key)
    moved = ("beat", "since")
    assert after.keys() == before.keys() >= {"boot", "stage", "node", "slots", "pid", "version", *moved}
    assert {name: after[name] for name in after if name not in moved} == {name: before[name] for name in before if name not in moved}


async def test_a_name_that_is_given_up_is_free_at_once(run: Run) -> None:
    first, second = run.worker(Stage.INIT, "w", "boot1"), run.worker(Stage.INIT, "w", "boot2")
    await first.take_name()

    assert not await run.scripts.drop_name("w", "boot2")
    assert await run.scripts.drop_name("w", "boot1")
    assert not await run.scripts.drop_name("w", "boot1")

    assert await second.take_name() is None


async def test_a_consumer_with_pending_entries_or_a_holder_is_not_deleted(run: Run, client: AsyncClient) -> None:
    """XGROUP DELCONSUMER throws the consumer's pending list away: a job delivered between the look and the deletion was delivered to
    nobody."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT, "w", "boot1")
    await worker.take_name()
    held = await worker.take()

    assert not await run.scripts.drop_consumer("s:init", Stage.INIT, "w")
    await run.scripts.drop_name("w", "boot1")
    assert not await run.scripts.drop_consumer("s:init", Stage.INIT, "w")
    await worker.hand_off(*held)
    await run.scripts.drop_name("w", "boot1")
    assert await run.scripts.drop_consumer("s:init", Stage.INIT, "w")


async def test_an_entry_delivered_again_to_somebody_else_goes_back_to_its_owner(run: Run, client: AsyncClient) -> None:
    """The group was made again from 0 (a flush of groups, an operator): every entry is delivered again, also those of running jobs. The
    second consumer is told that the job is held, and the owner's next renewal brings the entry home."""
    await run.accept(a_unit())
    owner, other = run.worker(Stage.INIT, "w1"), run.worker(Stage.INIT, "w2")
    held = await owner.take()
    await ask(client, "XGROUP", "DESTROY", owner.stream, "init")
    claims = await other.deliver()

    assert [answer.state for answer in await other.begin(*claims)] == ["held"]
    assert await owner.renew(*held) == (True, ["1"])

    assert [entry.pending_of for entry in await run.audit.stage_entries()] == ["w1"]


async def test_a_restarted_consumer_leaves_the_running_job_of_another_alone(run: Run, client: AsyncClient) -> None:
    """As above, but the consumer that was given the copy restarts before the owner renews. Its own pending list names a job of somebody
    else."""
    await run.accept(a_unit())
    owner, other = run.worker(Stage.INIT, "w1"), run.worker(Stage.INIT, "w2", "boot1")
    held = await owner.take()
    await ask(client, "XGROUP", "DESTROY", owner.stream, "init")
    claims = await other.deliver()
    successor = await run.successor(other, "boot2")

    assert await successor.recover("restart", *claims) == ["fresh"]

    assert await successor.own_pending() == []
    assert await owner.hand_off(*held) == ["ok"]
