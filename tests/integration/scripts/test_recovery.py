"""Jobs of workers that died come back; what was lost is counted, what was never begun is not (promise 1)."""

from __future__ import annotations

import pytest

from pipeline.messages import Outcome, Recovery, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import JournalTurn
from pipeline.testing import a_group, a_settlement, a_template, a_unit, wait_until

from .conftest import Run


async def test_a_lease_that_has_not_run_out_is_left_alone(run: Run) -> None:
    await run.accept(a_unit())
    held = await run.worker(Stage.INIT).take()

    assert await run.worker(Stage.INIT, "janitor").recover("idle", *held, lease_ms=60_000) == ["fresh"]


async def test_a_renewed_lease_is_young_again(run: Run, client: AsyncClient) -> None:
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    (held,) = await worker.take()
    await ask(client, "XCLAIM", worker.stream, "init", "w1", 0, held.entry, "IDLE", 90_000, "JUSTID", parse_justid=True)

    assert await worker.renew(held) == (True, ["1"])

    assert await worker.recover("idle", held, lease_ms=60_000) == ["fresh"]
    (row,) = await client.xpending_range(worker.stream, "init", "-", "+", 10)
    assert row["times_delivered"] == 1


@pytest.mark.parametrize("mode", ["idle", "restart"])
async def test_a_delivered_entry_that_was_never_begun_comes_back_uncounted(run: Run, mode: str) -> None:
    """The worker died between XREADGROUP and `begin`. Its entries must not wait for ever, and no attempt was made."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT, "w", "boot1")
    (claim,) = await worker.deliver()
    successor = await run.successor(worker, "boot2")

    assert await successor.recover(mode, claim) == ["ready"]

    (again,) = await successor.take()
    job = await run.audit.job(again.job)
    assert (again.attempt, job["lost"], job["failed"]) == (1, "0", "0")


@pytest.mark.parametrize("stage", list(Stage))
async def test_a_successor_of_the_same_name_takes_over_at_once(run: Run, stage: Stage) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(stage)
    successor = await run.successor(run.worker(stage, "w1"), "boot2")

    assert await successor.recover("restart", held, lease_ms=60_000) == ["lost"]

    (again,) = await successor.take()
    assert again.attempt == held.attempt + 1


async def test_a_job_lost_too_often_is_a_dead_letter_with_a_record(run: Run) -> None:
    """A poison job kills each worker that takes it. After `max_lost` retries it ends: a terminal record, its group's line, and a line in
    s:dead."""
    group = a_group(members=2)
    await run.accept(group, template=a_template(max_lost=2))
    worker = run.worker(Stage.INIT)
    poison, healthy = await worker.take()
    for _ in range(2):
        assert await worker.recover("idle", poison) == ["lost"]
        (poison,) = await worker.take()

    assert await worker.recover("idle", poison) == ["dead"]

    (record,) = await run.audit.results("run1")
    assert (record["job"], record["out"], record["att"], record["rew"]) == (poison.job, "infra_failure", "3", "")
    (dead,) = await run.audit.entries(run.audit.keys.dead)
    assert (dead["job"], dead["lost"], dead["failed"], dead["stage"], dead["rid"]) == (poison.job, "3", "0", "init", record["entry"])
    assert "lost 3 times" in record["why"]
    assert "w1#boot1" in record["why"]
    assert await worker.settle(healthy, settlement=a_settlement(1.0)) == ["ok"]
    assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "closed"


async def test_losses_and_failures_have_budgets_of_their_own(run: Run) -> None:
    """A worker killed by its machine must not spend the retries that a flaky task is allowed."""
    await run.accept(a_unit(), template=a_template(max_failed=1, max_lost=1))
    worker = run.worker(Stage.INIT)

    assert await worker.recover("idle", *await worker.take()) == ["lost"]
    assert await worker.give_up(*await worker.take()) == ["retry"]
    assert await worker.recover("idle", *await worker.take()) == ["dead"]


async def test_a_lost_run_attempt_with_an_environment_of_its_node_begins_in_init(run: Run, client: AsyncClient) -> None:
    await run.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=True)
    await run.accept(a_unit())
    init = run.worker(Stage.INIT)
    (made,) = await init.take()
    assert await init.hand_off(made, node="n1", epoch="e1") == ["ok"]
    agent = run.worker(Stage.RUN, stream=run.audit.keys.stage_stream(Stage.RUN, node="n1"))
    (held,) = await agent.take()

    assert await agent.recover("idle", held) == ["lost"]

    job = await run.audit.job(held.job)
    assert (job["st"], job["stage"], job["src"]) == ("ready", "init", "s:init")
    assert not {"b.init", "node", "epoch"} & set(job)
    assert await ask(client, "EXISTS", run.audit.keys.body(held.job, made.attempt, "init")) == 0


async def test_a_cancelled_job_whose_worker_died_ends_as_cancelled(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)
    await run.scripts.cancel("job", [held.job], "user")

    assert await run.worker(Stage.RUN).recover("idle", held) == ["ended"]

    (record,) = await run.audit.results("run1")
    assert (record["out"], record["why"]) == ("cancelled", "user")


async def test_finished_turns_of_a_lost_attempt_are_salvaged(run: Run, client: AsyncClient) -> None:
    """With `salvage_partial` the turns that were journalled go to EVAL under the lost attempt, and the lost attempt itself can add
    nothing to them."""
    await run.accept(a_unit(), template=a_template(recovery=Recovery.SALVAGE_PARTIAL))
    (lost,) = await run.reach(Stage.RUN)
    await run.scripts.journal([JournalTurn(lost.job, lost.attempt, 0, b"turn 0")], ttl_ms=60_000)
    agent = run.worker(Stage.RUN)

    assert await agent.recover("idle", lost) == ["salvaged"]
    assert await run.scripts.journal([JournalTurn(lost.job, lost.attempt, 1, b"late")], ttl_ms=60_000) == ["0"]
    assert await agent.hand_off(lost) == ["fenced"]

    grader = run.worker(Stage.EVAL)
    (claim,) = await grader.deliver()
    (begun,) = await grader.begin(claim)
    turns = run.audit.keys.body(lost.job, begun.run_attempt, "turns")
    assert begun.run_attempt == lost.attempt
    assert await ask(client, "LRANGE", turns, 0, -1) == [b"turn 0"]
    assert (await run.audit.job(lost.job))["lost"] == "0"


async def test_a_salvaged_job_is_graded_anywhere_and_its_turns_go_with_the_ack(run: Run, client: AsyncClient) -> None:
    """The environment was its node's. Its grading is not: after the grader's own loss the job must not wait in a lane that no grader
    reads."""
    await run.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=True)
    await run.accept(a_unit(), template=a_template(recovery=Recovery.SALVAGE_PARTIAL))
    init = run.worker(Stage.INIT)
    await init.hand_off(*await init.take(), node="n1", epoch="e1")
    agent = run.worker(Stage.RUN, stream=run.audit.keys.stage_stream(Stage.RUN, node="n1"))
    (lost,) = await agent.take()
    await run.scripts.journal([JournalTurn(lost.job, lost.attempt, 0, b"turn 0")], ttl_ms=60_000)
    assert await agent.recover("idle", lost) == ["salvaged"]
    grader = run.worker(Stage.EVAL)
    assert await grader.recover("idle", *await grader.take()) == ["lost"]

    (again,) = await grader.take()
    await grader.settle(again, settlement=a_settlement(1.0))
    (record,) = await run.audit.results("run1")
    await run.scripts.ack("run1", run.incarnation, [(record["entry"], "job", again.job)])
    run.units = []

    assert [key async for key in client.scan_iter(match=run.audit.keys.key("b", again.job, "*"))] == []


async def test_without_a_finished_turn_there_is_nothing_to_salvage(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(recovery=Recovery.SALVAGE_PARTIAL))
    (lost,) = await run.reach(Stage.RUN)

    assert await run.worker(Stage.RUN).recover("idle", lost) == ["lost"]


async def test_the_loss_of_a_dead_letter_is_told_to_its_run_even_after_a_cancelled_neighbour(run: Run) -> None:
    group = a_group(members=2)
    await run.accept(group, template=a_template(max_lost=0))
    worker = run.worker(Stage.INIT)
    first, second = await worker.take()
    await run.scripts.cancel("job", [first.job], "user")
    assert await worker.settle(first) == ["cx:user"]
    assert await worker.recover("idle", second) == ["dead"]

    lines = await run.audit.members(group.id)
    assert [lines[member][0] for member in range(2)] == [Outcome.CANCELLED, Outcome.INFRA_FAILURE]


async def test_after_a_gap_no_lease_and_no_deadline_is_judged_for_one_lease(run: Run) -> None:
    """Redis was away for longer than a lease. When it is back every lease looks expired, though the workers live and will renew within
    moments: judging at once would count an outage as a loss of everything that ran."""
    await run.accept(a_unit(prompt="held"), a_unit(prompt="late"), template=a_template(wall_s=0.05))
    held = await run.worker(Stage.INIT).take()
    janitor = run.worker(Stage.INIT, "janitor")
    period = {"period_ms": 20, "lease_ms": 400}
    assert (await run.scripts.janitor_round("j1", **period))[:2] == (True, True)
    await wait_until(lambda: past_deadline(run, 2), "both deadlines have passed")

    assert await janitor.recover("idle", *held) == ["fresh", "fresh"]
    assert await run.scripts.expire_deadlines() == (0, 0)

    async def loud() -> bool:
        return (await run.scripts.janitor_round("j1", **period))[:2] == (True, False)

    await wait_until(loud, "the quiet time is over")
    assert await janitor.recover("idle", held[0]) == ["lost"]
    assert await run.scripts.expire_deadlines() == (1, 1)


async def past_deadline(run: Run, jobs: int) -> bool:
    seconds, micros = await ask(run.client, "TIME")
    now = seconds * 1000 + micros // 1000
    return int(await ask(run.client, "ZCOUNT", run.audit.keys.key("z:deadline"), "-inf", now)) >= jobs


async def test_one_janitor_acts_and_another_takes_over(run: Run) -> None:
    """The one that acted last goes on; another takes over when it has missed its round, and that alone is no outage."""
    period = {"period_ms": 400, "lease_ms": 1600}
    assert (await run.scripts.janitor_round("j1", **period))[0]
    assert not (await run.scripts.janitor_round("j2", **period))[0]
    assert (await run.scripts.janitor_round("j1", **period))[0]
    await ask(run.client, "HSET", run.audit.keys.key("janitor"), "quiet_until", 0)

    async def acts() -> bool:
        return (await run.scripts.janitor_round("j2", **period))[0]

    await wait_until(acts, "the second janitor takes over")
    assert (await run.scripts.janitor_round("j2", **period))[:2] == (True, False)
    assert not (await run.scripts.janitor_round("j1", **period))[0]


async def test_a_successor_with_two_lives_of_one_job_counts_each_once(run: Run) -> None:
    """boot1 dies, boot2 takes the job and dies too, boot3 finds the pending list of both: only the current entry is put back."""
    await run.accept(a_unit(), template=a_template(max_lost=5))
    first = run.worker(Stage.INIT, "w", "boot1")
    (one,) = await first.take()
    second = await run.successor(first, "boot2")
    await second.recover("restart", one)
    (two,) = await second.take()
    third = await run.successor(second, "boot3")

    assert await third.recover("restart", one, two, two) == ["stale", "lost", "stale"]

    assert (await run.audit.job(one.job))["lost"] == "2"
