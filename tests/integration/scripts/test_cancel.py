"""Promise 4: a cancel is durable. It settles a job that nobody holds at once, and marks one that somebody does, in whatever state it
meets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

from pipeline.messages import CancelReason, Stage
from pipeline.redis_client import ask
from pipeline.scripts import JournalTurn
from pipeline.testing import a_group, a_settlement, a_unit, jobs_of

from .conftest import Connect, Run

JOB = a_unit().id


async def waiting(run: Run) -> None:
    await run.accept(a_unit(), window=0)


async def ready(run: Run) -> None:
    await run.accept(a_unit())


async def delivered(run: Run) -> None:
    await ready(run)
    await run.worker(Stage.INIT).deliver()


async def running(run: Run) -> None:
    await ready(run)
    await run.reach(Stage.RUN)


async def delayed(run: Run) -> None:
    await ready(run)
    worker = run.worker(Stage.INIT)
    await worker.give_up(*await worker.take(), backoff_ms=60_000)


async def done(run: Run) -> None:
    await ready(run)
    await run.worker(Stage.EVAL).settle(*await run.reach(Stage.EVAL))


async def unknown(run: Run) -> None:
    return None


@pytest.mark.parametrize(
    ("state", "found", "outcome"),
    [
        (waiting, "settled", ["cancelled"]),
        (ready, "settled", ["cancelled"]),
        (delivered, "settled", ["cancelled"]),
        (delayed, "settled", ["cancelled"]),
        (running, "running", []),
        (done, "done", ["ok"]),
        (unknown, "unknown", []),
    ],
)
async def test_a_cancel_in_each_state(run: Run, state: Callable[[Run], Awaitable[None]], found: str, outcome: list[str]) -> None:
    await state(run)

    for _ in range(2):
        counts = await run.scripts.cancel("job", [JOB], "user")
        assert counts == {"settled": 0, "running": 0, "done": 0, "unknown": 0, found: 1}
        assert [row["out"] for row in await run.audit.results("run1")] == outcome
        found = "done" if found == "settled" else found


async def test_an_entry_cancelled_between_delivery_and_begin_is_gone(run: Run) -> None:
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    claims = await worker.deliver()
    await run.scripts.cancel("job", [JOB], "redundant")

    assert [begun.state for begun in await worker.begin(*claims)] == ["gone"]
    assert await run.audit.stage_entries() == []


async def test_a_cancelled_running_job_is_told_at_every_turn(run: Run) -> None:
    """The mark is in the job: renewal, journal and hand-off all say so, and the worker's settle ends it as cancelled, with what it had
    made."""
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)
    worker = run.worker(Stage.RUN)
    await run.scripts.cancel("job", [JOB], "redundant")

    assert await worker.renew(held) == (True, ["redundant"])
    assert await run.scripts.journal([JournalTurn(held.job, held.attempt, 0, b"t")], ttl_ms=60_000) == ["redundant"]
    assert await worker.hand_off(held) == ["cx:redundant"]
    assert await worker.settle(held, settlement=a_settlement(1.0), body=b"partial", kind="run") == ["cx:redundant"]
    assert await worker.settle(held) == ["again"]

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"], record["rew"], record["sampled"], record["ra"]) == ("cancelled", "redundant", "", "3", "2")


@pytest.mark.parametrize("kind", ["failed", "lost", "back", "dead"])
async def test_a_cancelled_job_that_is_given_up_ends_as_cancelled(run: Run, kind: str) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)
    await run.scripts.cancel("job", [JOB], "user")

    assert await run.worker(Stage.RUN).give_up(held, kind=kind) == ["cx:user"]  # type: ignore[arg-type]

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"]) == ("cancelled", "user")
    assert not await run.client.exists(run.audit.keys.dead)


async def test_the_first_reason_stands(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)
    await run.scripts.cancel("job", [JOB], "redundant")
    await run.scripts.cancel("job", [JOB], "user")

    assert await run.worker(Stage.RUN).settle(held) == ["cx:redundant"]


@pytest.mark.parametrize("act", ["hand_off", "settle", "give_up"])
@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancel_that_races_the_end_of_an_attempt(run: Run, act: str, cancel_first: bool) -> None:
    """Both orders end in one record, and the cancel wins unless the job had ended before it."""
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)
    worker = run.worker(Stage.RUN)
    if cancel_first:
        await run.scripts.cancel("job", [JOB], "user")
    (word,) = await getattr(worker, act)(held)
    if not cancel_first:
        await run.scripts.cancel("job", [JOB], "user")
    if word == "cx:user" and act == "hand_off":
        await worker.settle(held)

    (record,) = await run.audit.results("run1")
    assert record["out"] == ("ok" if act == "settle" and not cancel_first else "cancelled")


async def test_a_group_is_cancelled_whole_whatever_its_members_do(run: Run) -> None:
    group = a_group(members=5)
    await run.accept(group, window=4)
    init = run.worker(Stage.INIT, window=0)
    first, second, third, _ = await init.take(4)
    await init.give_up(first, backoff_ms=60_000)
    await init.hand_off(second)
    await init.settle(third)

    counts = await run.scripts.cancel("group", [group.id], "redundant")

    assert counts == {"settled": 3, "running": 1, "done": 1, "unknown": 0}
    assert await run.states() == {"done": 4, "running": 1}


async def test_a_run_is_cancelled_page_by_page_and_its_first_message_is_enough(run: Run) -> None:
    """A run may have a hundred thousand waiting jobs: they are settled in pages, so that no script holds the server. Its own mark stands
    from the first page on, and workers are told once, not once a page."""
    groups = [a_group(prompt=f"p{number}", members=2) for number in range(30)]
    await run.accept(*groups, window=8)
    held = await run.worker(Stage.INIT, window=0).take(4)

    counts = await run.scripts.cancel("run", ["run1"], "user", most=10)

    assert counts == {"settled": 56, "running": 4, "done": 0, "unknown": 0}
    messages = await run.audit.entries(run.audit.keys.cancel)
    assert {row["kind"] for row in messages} == {"run"}
    assert len(messages) <= 2
    assert await run.worker(Stage.INIT, window=0).renew(*held) == (True, ["user"] * 4)
    assert await run.worker(Stage.INIT, window=0).settle(*held) == ["cx:user"] * 4


async def test_a_cancelled_run_takes_nothing_new_and_its_stragglers_end_at_begin(run: Run) -> None:
    """The canceller died after its first page: what it had not settled yet ends when a worker begins it."""
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(6)])
    await run.scripts.run_script("cancel", "run", "user", 2, "", 1, "run1")
    worker = run.worker(Stage.INIT)

    begun = await worker.begin(*await worker.deliver())

    assert {answer.state for answer in begun} == {"ended"}
    assert {row["out"] for row in await run.audit.results("run1")} == {"cancelled"}
    assert await run.states() == {"done": 6}


async def test_a_run_cancelled_half_way_stays_cancelled_for_the_jobs_it_had(run: Run, connect: Connect) -> None:
    """As above, and a new trainer takes the run before the stragglers are begun. They belong to what was cancelled; the new trainer's
    jobs do not."""
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(4)])
    running, *_ = await run.worker(Stage.INIT).take(1)
    await run.scripts.run_script("cancel", "run", "user", 2, "", 1, "run1")
    fresh = await connect(nonce="second trainer")
    await fresh.accept(a_unit(prompt="new"))
    run.units += fresh.units

    worker = run.worker(Stage.INIT)
    begun = await worker.begin(*await worker.deliver())

    assert {answer.claim.job: answer.state for answer in begun} == {
        "run1.p2.0": "ended",
        "run1.p3.0": "ended",
        "run1.new.0": "ok",
    }
    assert await worker.renew(running) == (True, ["user"])


async def test_a_deadline_and_a_cancel_end_a_job_under_their_own_names(run: Run) -> None:
    await run.accept(a_unit(prompt="one"), a_unit(prompt="two"))
    one, two = await run.reach(Stage.RUN)
    await run.scripts.cancel("job", [one.job], "deadline")
    await run.scripts.cancel("job", [two.job], "user")

    worker = run.worker(Stage.RUN)
    await worker.settle(one)
    await worker.give_up(two, kind="back")

    assert [(row["out"], row["why"]) for row in await run.audit.results("run1")] == [("expired", "deadline"), ("cancelled", "user")]


async def test_many_targets_are_cancelled_in_batches(run: Run) -> None:
    units = [a_unit(prompt=f"p{number}") for number in range(100)]
    await run.accept(*units)

    counts = await run.scripts.cancel("job", [unit.id for unit in units], "user")

    assert counts == {"settled": 100, "running": 0, "done": 0, "unknown": 0}
    longest = max(len(row["ids"].split()) for row in await run.audit.entries(run.audit.keys.cancel))
    assert longest <= 32


async def test_a_cancel_goes_on_when_a_new_trainer_has_the_run_and_spares_its_jobs(connect: Connect) -> None:
    """A cancel of a run takes many calls. A trainer that connected between two of them found its run, open again by then, cancelled by the
    next one; so did one whose predecessor, long fenced, cancelled what it took for its own."""
    old = await connect(nonce="old")
    await old.accept(*(a_unit(prompt=f"old{i}") for i in range(3)), window=0)
    reply = await old.scripts.run_script("cancel", "run", "user", 1, "", old.incarnation, "run1")
    assert reply[1] == 1
    new = await connect(nonce="new")
    await new.accept(a_unit(prompt="new"), a_group(prompt="new-group", members=2), window=0)

    await old.scripts.cancel("run", ["run1"], "user", incarnation=old.incarnation)

    assert await old.states() == {"done": 3}
    assert await new.states() == {"waiting": 3}
    assert await new.accept(a_unit(prompt="next")) == [True]


async def test_a_run_that_expired_is_forgotten(connect: Connect) -> None:
    """Every supervisor looks at every run each second, and so does the janitor from time to time: at every run that ever was."""
    run, other = await connect(), await connect("other")
    await ask(run.client, "DEL", run.audit.keys.run("run1"))

    for name in ("run1", "other"):
        await run.scripts.reconcile(name)

    assert await ask(other.client, "ZRANGE", run.audit.keys.runs, 0, -1) == [b"other"]


async def test_the_id_of_a_group_is_no_job(run: Run) -> None:
    """Somebody cancels a job and names its group. The group stands among the open units without a hash of a job, as a job does whose hash
    is lost: it got a terminal record of its own, the run a count too few, and its members were no open unit any more."""
    group = a_group(members=2)
    await run.accept(group)

    counts = await run.scripts.cancel("job", [group.id], "user")

    assert counts == {"settled": 0, "running": 0, "done": 0, "unknown": 1}
    assert await run.audit.results("run1") == []
    assert await run.states() == {"ready": 2}


async def test_a_cancel_that_came_no_further_than_its_first_call_stands(run: Run) -> None:
    """32 groups of 1,024 members in one call held the server for up to a second, and everybody's leases with it. A call passes over a
    bounded number of members, so a canceller may die between two: the first call marks every group and tells the workers, and what it
    did not come to is refused by `begin`, told by `renew` and settled by `reconcile`."""
    groups = [a_group(prompt=f"p{number}", members=4) for number in range(4)]
    await run.accept(*groups, window=6)
    worker = run.worker(Stage.INIT, window=0)
    held = await worker.take(6)
    assert (held[4].job, held[5].job) == (f"{groups[1].id}.0", f"{groups[1].id}.1")
    delayed, *held = held
    await worker.give_up(delayed, backoff_ms=60_000)

    reply = await run.scripts.run_script("cancel", "group", "overload", 2, "", 0, *[group.id for group in groups])

    assert reply[:5] == [b"more", 1, 1, 0, 0], "two members of the first group"
    (message,) = await run.audit.entries(run.audit.keys.cancel)
    assert (message["kind"], message["why"], message["ids"].split()) == ("group", "overload", [group.id for group in groups])
    assert await worker.renew(*held) == (True, ["overload"] * 5)
    await run.scripts.admit(["none"], 256)
    begun = await run.worker(Stage.INIT).begin(*await run.worker(Stage.INIT).deliver(2))
    assert {answer.state for answer in begun} == {"ended"}
    await run.scripts.reconcile("run1")
    assert await run.states() == {"done": 11, "running": 5}
    assert await worker.give_up(held[4], kind="failed") == ["cx:overload"]
    assert await worker.settle(*held[:4]) == ["cx:overload"] * 4
    assert {(row["out"], row["why"]) for row in await run.audit.results("run1")} == {("cancelled", "overload")}


@pytest.mark.parametrize("most", [1, 3, 1000])
async def test_a_cancel_in_pieces_settles_each_member_once(run: Run, most: int) -> None:
    groups = [a_group(prompt=f"p{number}", members=5) for number in range(3)]
    await run.accept(*groups, window=4)
    held = await run.worker(Stage.INIT, window=0).take(4)

    for _ in range(2):
        counts = await run.scripts.cancel("group", [group.id for group in groups] + ["run1.nobody.0"], "user", most=most)

    assert counts == {"settled": 0, "running": 4, "done": 11, "unknown": 1}
    assert await run.worker(Stage.INIT, window=0).settle(*held) == ["cx:user"] * 4
    assert len(await run.audit.entries(run.audit.keys.cancel)) == 1


@pytest.mark.parametrize("most", [1, 3, 1000])
async def test_a_run_is_cancelled_in_pieces_of_groups_and_single_jobs(run: Run, most: int) -> None:
    """A piece may end within a group, and the units behind it move up when it ends."""
    await run.accept(a_unit(prompt="one"), a_group(prompt="g1", members=4), a_unit(prompt="two"), a_group(prompt="g2", members=3), window=2)
    held = await run.worker(Stage.INIT, window=0).take(2)

    counts = await run.scripts.cancel("run", ["run1"], "user", most=most)

    assert counts == {"settled": 7, "running": 2, "done": 0, "unknown": 0}
    assert await run.worker(Stage.INIT, window=0).settle(*held) == ["cx:user"] * 2


async def test_a_group_whose_members_have_all_ended_is_not_cancelled_any_more(run: Run) -> None:
    """A group that is marked counts as given up, and its prompt is drawn again: a cancel after the last member changes nothing."""
    group = a_group(members=2)
    await run.accept(group)
    await run.worker(Stage.INIT).settle(*await run.worker(Stage.INIT).take(2))

    assert await run.scripts.cancel("group", [group.id], "user") == {"settled": 0, "running": 0, "done": 2, "unknown": 0}

    assert "cx" not in await run.audit.hash(run.audit.keys.group(group.id))
    assert await run.audit.entries(run.audit.keys.cancel) == []


@pytest.mark.parametrize("reason", list(CancelReason))
async def test_a_member_of_a_lost_worker_ends_by_the_mark_of_its_group(run: Run, reason: CancelReason) -> None:
    """The canceller died after its first call, and so did the worker: who finds the lease expired must not make a retry of it."""
    group = a_group(members=2)
    await run.accept(group)
    await run.worker(Stage.INIT).take(2)
    await run.scripts.run_script("cancel", "group", reason.value, 0, "", 0, group.id)

    entries = [(entry.stream, entry.id, entry.job, 0.0) for entry in await run.audit.stage_entries()]
    words = await run.scripts.recover("idle", entries, lease_ms=0, consumer="j", boot="j", backoff_ms=0, backoff_max_ms=0)

    assert words == ["ended"] * 2
    outcome = "expired" if reason is CancelReason.DEADLINE else "cancelled"
    assert {(row["out"], row["why"]) for row in await run.audit.results("run1")} == {(outcome, reason.value)}


@pytest.mark.parametrize("most", [1, 3, 1000])
async def test_an_ack_in_pieces_lets_go_of_everything(run: Run, most: int) -> None:
    """An ack of 32 groups of 1,024 members was one call, too."""
    groups = [a_group(prompt=f"p{number}", members=4) for number in range(3)]
    await run.accept(*groups, a_unit(prompt="one"))
    await run.scripts.cancel("group", [group.id for group in groups], "user")
    await run.scripts.cancel("job", ["run1.one.0"], "user")
    (single,) = [row for row in await run.audit.results("run1") if row["job"] == "run1.one.0"]

    units: list[tuple[str, Literal["job", "group", "step"], str]] = [("", "group", group.id) for group in groups]
    removed = await run.scripts.ack("run1", run.incarnation, [*units, (single["entry"], "job", "run1.one.0")], most=most)

    assert removed == 13
    assert await run.audit.results("run1") == []
    assert not await run.client.exists(
        *(run.audit.keys.job(job) for group in groups for job in jobs_of(group)), run.audit.keys.group(groups[0].id)
    )
    run.units.clear()
