"""A wall deadline ends a job in whatever state it is; nothing waits for ever (promise 1)."""

from __future__ import annotations

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing import a_group, a_unit

from .conftest import Run


async def pass_deadlines(run: Run) -> None:
    """As if the wall deadline of every open job had passed a second ago."""
    key = run.audit.keys.key("z:deadline")
    for job in await ask(run.client, "ZRANGE", key, 0, -1):
        await ask(run.client, "ZADD", key, 1, job)


async def test_a_deadline_in_each_state(run: Run) -> None:
    """Waiting, claimable, delivered and delayed jobs expire at once. A running one is told, and ends as expired with what it has."""
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(4)])
    worker = run.worker(Stage.INIT, window=0)
    delayed, running = await worker.take(2)
    await worker.give_up(delayed, backoff_ms=60_000)
    await worker.deliver(1)
    await run.accept(a_unit(prompt="waiting"), window=0)
    assert await run.states() == {"ready": 2, "running": 1, "delayed": 1, "waiting": 1}
    await pass_deadlines(run)

    assert await run.scripts.expire_deadlines() == (4, 1)
    assert await run.scripts.expire_deadlines() == (0, 0)

    assert [(row["out"], row["why"]) for row in await run.audit.results("run1")] == [("expired", "deadline")] * 4
    assert await worker.renew(running) == (True, ["deadline"])
    (message,) = await run.audit.entries(run.audit.keys.cancel)
    assert (message["kind"], message["why"], message["ids"]) == ("job", "deadline", running.job)
    assert await worker.settle(running, body=b"partial", kind="run") == ["cx:deadline"]
    (*_, record) = await run.audit.results("run1")
    assert (record["out"], record["why"], record["ra"]) == ("expired", "deadline", "1")


async def test_a_group_closes_by_deadline(run: Run) -> None:
    group = a_group(members=3)
    await run.accept(group)
    held = await run.worker(Stage.INIT).take(1)
    await pass_deadlines(run)

    await run.scripts.expire_deadlines()
    assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "open"
    await run.worker(Stage.INIT).recover("idle", *held)

    assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "closed"
    assert await run.audit.all_ended("run1", run.units) == []


async def test_deadlines_are_met_page_by_page_past_running_jobs(run: Run) -> None:
    """Jobs that run keep their place in the list; were they looked at first each time, a page full of them would hide all others."""
    await run.accept(*[a_unit(prompt=f"p{number}") for number in range(20)])
    held = await run.worker(Stage.INIT).take(10)
    await pass_deadlines(run)

    ended = marked = 0
    for _ in range(5):
        more_ended, more_marked = await run.scripts.expire_deadlines(most=4)
        ended, marked = ended + more_ended, marked + more_marked

    assert (ended, marked) == (10, 10)
    assert len(held) == 10


async def test_a_job_whose_entry_is_gone_and_whose_worker_hangs_ends_at_its_deadline(run: Run) -> None:
    """The stream was deleted, so no lease of this entry can run out; the process lives and renews its name, but this job hangs. Nobody
    would ever settle it: its deadline marked it again and again."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    await worker.take()
    await ask(run.client, "DEL", worker.stream)
    await pass_deadlines(run)

    assert await run.scripts.expire_deadlines() == (1, 0)

    assert await run.audit.all_ended("run1", run.units) == []


async def test_a_job_key_of_another_type_does_not_stop_all_deadlines(run: Run) -> None:
    """One job's hash was overwritten by something else. The script failed at that job each time, so no deadline after it was ever met. It
    ends as a dead letter, in its group and its counters, and the others expire."""
    group = a_group(members=2)
    await run.accept(a_unit(prompt="other"), group)
    await ask(run.client, "SET", run.audit.keys.job(f"{group.id}.0"), "something else", "EX", 3600)
    await pass_deadlines(run)

    ended, marked = await run.scripts.expire_deadlines()

    assert (ended, marked) == (3, 0)
    assert sorted(row["out"] for row in await run.audit.results("run1")) == ["expired", "expired", "infra_failure"]
    (dead,) = await run.audit.entries(run.audit.keys.dead)
    assert dead["job"] == f"{group.id}.0"
    worker = run.worker(Stage.INIT)
    assert [begun.state for begun in await worker.begin(*await worker.deliver())] == ["gone"]  # nobody knew where its entry was
    assert await run.audit.all_ended("run1", run.units) == []
