"""Promise 3: a group closes exactly once and its first verdict stands. Every member counts once, however it ended."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from pipeline.messages import Outcome, Stage
from pipeline.redis_client import ask
from pipeline.testing import a_group, a_settlement, a_template, a_unit, jobs_of

from .conftest import Run


async def test_a_group_closes_with_its_last_member_and_not_before(run: Run) -> None:
    group = a_group(members=3)
    await run.accept(group)
    held = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)
    for reward, job in enumerate(held[:2]):
        await worker.settle(job, settlement=a_settlement(float(reward)))
        assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "open"

    await worker.settle(held[2], settlement=a_settlement(2.0))

    assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "closed"
    assert {n: line[:2] for n, line in (await run.audit.members(group.id)).items()} == {
        0: ["ok", "0.0"],
        1: ["ok", "1.0"],
        2: ["ok", "2.0"],
    }


@pytest.mark.parametrize("seed", range(4))
async def test_a_group_closes_once_with_mixed_outcomes_in_any_order(run: Run, seed: int) -> None:
    """Settled, failed by the model, dead from failures, dead from losses, cancelled while waiting to be claimed, cancelled while running,
    expired: each is one line, and the last of them, whichever it is, closes the group."""
    group = a_group(members=7)
    await run.accept(group, template=a_template(max_failed=0, max_lost=0))
    init = run.worker(Stage.INIT)
    ok, model, failed, lost, running, late = await init.take(6)
    unheld = (set(jobs_of(group)) - {job.job for job in (ok, model, failed, lost, running, late)}).pop()
    await run.scripts.cancel("job", [running.job], "user")
    await run.scripts.cancel("job", [late.job], "deadline")

    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: init.settle(ok, settlement=a_settlement(1.0)),
        lambda: init.settle(model, settlement=a_settlement(0.0, outcome=Outcome.MODEL_FAILURE)),
        lambda: init.give_up(failed),
        lambda: init.recover("idle", lost),
        lambda: init.give_up(running, kind="back"),
        lambda: init.settle(late),
        lambda: run.scripts.cancel("job", [unheld], "redundant"),
    ]
    random.Random(seed).shuffle(steps)
    for number, step in enumerate(steps):
        assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "open", number
        await step()
        await step()

    outcomes = sorted(line[0] for line in (await run.audit.members(group.id)).values())
    assert outcomes == ["cancelled", "cancelled", "expired", "infra_failure", "infra_failure", "model_failure", "ok"]
    assert await run.audit.all_ended("run1", run.units) == []


async def test_the_line_of_a_member_says_what_its_record_says(run: Run) -> None:
    group = a_group(members=1)
    await run.accept(group)
    (held,) = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(held, settlement=a_settlement(0.1, reason="a|b", components={"score": 0.1, "a|b": 2.0}))

    (record,) = await run.audit.results("run1")
    (line,) = (await run.audit.members(group.id)).values()
    assert line == ["ok", "0.1", "finished", "3", "8", "1", "3", "1.0", "1.0", record["entry"], "a/b", '{"score":0.1,"a|b":2.0}']
    assert (record["why"], record["comps"]) == ("a|b", '{"score":0.1,"a|b":2.0}')


async def test_numbers_of_any_library_travel_as_plain_numbers(run: Run) -> None:
    """A grader computes with numpy. `repr` of its float is `np.float64(0.5)`, which no reader takes for a reward."""
    import numpy as np

    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    settlement = a_settlement(np.float64(0.5), components={"score": np.float32(0.25)})
    await run.worker(Stage.EVAL).settle(held, settlement=settlement)

    (record,) = await run.audit.results("run1")
    assert (record["rew"], record["comps"]) == ("0.5", '{"score":0.25}')


async def test_a_member_of_a_vanished_group_leaves_nothing_behind(run: Run) -> None:
    """The group's hash is gone (expired, flushed by hand). Its members still end; no member hash may be made that nobody closes and
    nothing expires."""
    group = a_group(members=2)
    await run.accept(group)
    held = await run.reach(Stage.EVAL)
    await ask(run.client, "DEL", run.audit.keys.group(group.id))

    assert await run.worker(Stage.EVAL).settle(*held) == ["ok", "ok"]

    assert len(await run.audit.results("run1")) == 2
    assert not await run.client.exists(run.audit.keys.members(group.id))
    run.units = []


async def test_an_open_group_cannot_be_acked_away(run: Run) -> None:
    """A trainer acked a group that was still open: its hash went, its last members settled into a hash without expiry, and it never
    closed."""
    group = a_group(members=2)
    await run.accept(group)
    first, second = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)
    await worker.settle(first)

    await run.scripts.ack("run1", run.incarnation, [("", "group", group.id)])
    await worker.settle(second)

    assert (await run.audit.hash(run.audit.keys.group(group.id)))["st"] == "closed"


async def test_begun_members_are_counted_once_an_attempt(run: Run) -> None:
    group = a_group(members=2)
    await run.accept(group)
    one, two = await run.reach(Stage.RUN)
    worker = run.worker(Stage.RUN)
    await worker.give_up(one, kind="back")
    await worker.take()

    assert (await run.audit.hash(run.audit.keys.group(group.id)))["begun"] == "3"
    assert await worker.hand_off(two) == ["ok"]


async def test_a_group_of_a_thousand_members_lives_and_dies(run: Run) -> None:
    """Lua passes at most some thousand values to a call."""
    big, bigger = a_group(prompt="big", members=1000), a_group(prompt="bigger", members=5000)
    assert await run.accept(big, bigger, window=32) == [True, True]

    assert (await run.scripts.cancel("group", [bigger.id], "user"))["settled"] == 5000
    assert (await run.scripts.cancel("group", [big.id], "user"))["settled"] == 1000
    assert (await run.audit.hash(run.audit.keys.group(big.id)))["st"] == "closed"
    assert await run.scripts.ack("run1", run.incarnation, [("", "group", big.id), ("", "group", bigger.id)]) == 6000
    run.units = []
