"""A node's lane: jobs whose environment is on that node, and what becomes of them when the node, or its RUN workers, are gone (promise
2)."""

from __future__ import annotations

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing import ManualWorker, a_group, a_unit, wait_until

from .conftest import Run


async def beat(run: Run, epoch: str = "e1", **changes: bool) -> None:
    await run.scripts.beat_node(
        "n1", epoch, live_ms=60_000, reads_lane=changes.get("reads_lane", True), leaving=changes.get("leaving", False)
    )


def lane(run: Run) -> ManualWorker:
    return run.worker(Stage.RUN, "lane-worker", stream=run.audit.keys.stage_stream(Stage.RUN, node="n1"))


async def test_a_job_goes_to_the_lane_of_its_node(run: Run) -> None:
    await beat(run)
    await run.accept(a_unit())
    init = run.worker(Stage.INIT)

    assert await init.hand_off(*await init.take(), node="n1", epoch="e1") == ["ok"]

    assert [entry.stream for entry in await run.audit.stage_entries()] == ["s:run:@n1"]
    (claim,) = await lane(run).deliver()
    (begun,) = await lane(run).begin(claim)
    assert (begun.state, begun.node) == ("ok", "n1")


@pytest.mark.parametrize("gone", ["never there", "another epoch", "left", "no RUN worker"])
async def test_a_hand_off_into_a_lane_nobody_reads_goes_back_to_init_uncounted(run: Run, gone: str) -> None:
    """The node died, restarted, or lost its RUN workers between INIT and the hand-off. Asked again after a lost reply the answer is the
    same: `again` would make INIT keep a sandbox for a job that is being made anew."""
    if gone == "another epoch":
        await beat(run, "e2")
    elif gone == "left":
        await beat(run)
        await beat(run, leaving=True)
    elif gone == "no RUN worker":
        await beat(run, reads_lane=False)
    await run.accept(a_unit())
    init = run.worker(Stage.INIT)
    held = await init.take()

    assert await init.hand_off(*held, node="n1", epoch="e1") == ["node_gone"]
    assert await init.hand_off(*held, node="n1", epoch="e1") == ["node_gone"]

    job = await run.audit.job(held[0].job)
    assert (job["st"], job["stage"], job["failed"], job["lost"]) == ("delayed", "init", "0", "0")
    await wait_until(lambda: promoted(run), "the pause is over")
    (again,) = await init.take()
    assert again.attempt == 2


async def promoted(run: Run) -> bool:
    return (await run.scripts.promote())[0] == 1


async def test_a_worker_of_another_stage_that_leaves_does_not_close_the_lane(run: Run) -> None:
    await beat(run)
    await beat(run, reads_lane=False, leaving=True)
    await run.accept(a_unit())
    init = run.worker(Stage.INIT)

    assert await init.hand_off(*await init.take(), node="n1", epoch="e1") == ["ok"]


async def test_a_dead_nodes_lane_is_swept_and_deleted(run: Run) -> None:
    """What waits goes back to INIT uncounted, and what INIT had made there is dropped. What a worker still holds is left to its lease,
    and the lane stays until that is over."""
    await beat(run)
    await run.accept(a_group(members=3))
    init, agent = run.worker(Stage.INIT), lane(run)
    await init.hand_off(*await init.take(), node="n1", epoch="e1")
    running, *_ = await agent.take(1)
    (delivered,) = await agent.deliver(1)
    assert await run.scripts.sweep_lane("s:run:@n1", "n1") == (0, 3, False)
    await ask(run.client, "DEL", run.audit.keys.key("n", "n1", "run"))

    assert await run.scripts.sweep_lane("s:run:@n1", "n1") == (2, 1, False)

    assert [begun.state for begun in await agent.begin(delivered)] == ["gone"]
    job = await run.audit.job(delivered.job)
    assert (job["stage"], job["lost"], job["failed"]) == ("init", "0", "0")
    assert not {"b.init", "node", "epoch"} & set(job)
    assert await agent.hand_off(running) == ["ok"]
    assert await run.scripts.sweep_lane("s:run:@n1", "n1") == (0, 0, True)
    assert not await run.client.exists(run.audit.keys.stage_stream(Stage.RUN, node="n1"))
    assert not await run.client.sismember(run.audit.keys.key("streams"), "s:run:@n1")


async def test_a_swept_job_leaves_nothing_that_init_had_made(run: Run) -> None:
    await beat(run)
    await run.accept(a_unit())
    init = run.worker(Stage.INIT)
    (held,) = await init.take()
    await init.hand_off(held, node="n1", epoch="e1", body=b"handle of a sandbox that is gone")
    assert await run.client.exists(run.audit.keys.body(held.job, held.attempt, "init"))
    await ask(run.client, "DEL", run.audit.keys.key("n", "n1", "run"))

    await run.scripts.sweep_lane("s:run:@n1", "n1")

    assert not await run.client.exists(run.audit.keys.body(held.job, held.attempt, "init"))


async def test_a_node_that_came_back_does_not_run_what_was_made_in_its_life_before(run: Run) -> None:
    """The node rebooted: its name is the same, its sandboxes are not. Its lane has a reader again, so it was never swept, and each job of
    the life before failed to attach, at the cost of a retry. The epoch in the job tells the two lives apart."""
    await beat(run, "e1")
    await run.accept(a_group(members=2))
    init = run.worker(Stage.INIT)
    await init.hand_off(*await init.take(1), node="n1", epoch="e1")
    await beat(run, "e2")
    await init.hand_off(*await init.take(1), node="n1", epoch="e2")

    assert await run.scripts.sweep_lane("s:run:@n1", "n1") == (1, 1, False)

    (claim,) = await lane(run).deliver()
    assert claim.member == 1


async def test_a_retry_in_the_lane_of_a_dead_node_is_swept_too(run: Run) -> None:
    """A RUN attempt that is handed back goes to INIT when its environment is its node's: it is never again in a lane by itself."""
    await beat(run)
    await run.accept(a_unit())
    init, agent = run.worker(Stage.INIT), lane(run)
    await init.hand_off(*await init.take(), node="n1", epoch="e1")

    assert await agent.give_up(*await agent.take(), backoff_ms=60_000) == ["retry"]

    job = await run.audit.job(run.units[0].id)
    assert (job["st"], job["stage"]) == ("delayed", "init")
    await ask(run.client, "ZADD", run.audit.keys.key("z:delay"), 1, run.units[0].id)
    await run.scripts.promote()
    assert [entry.stream for entry in await run.audit.stage_entries()] == ["s:init"]


async def test_grading_is_done_anywhere_after_a_run_in_a_lane(run: Run) -> None:
    await beat(run)
    await run.accept(a_unit())
    init, agent, grader = run.worker(Stage.INIT), lane(run), run.worker(Stage.EVAL)
    await init.hand_off(*await init.take(), node="n1", epoch="e1")
    await agent.hand_off(*await agent.take())
    assert await grader.give_up(*await grader.take()) == ["retry"]
    assert await grader.recover("idle", *await grader.take()) == ["lost"]

    assert [entry.stream for entry in await run.audit.stage_entries()] == ["s:eval"]
