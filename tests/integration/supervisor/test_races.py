"""Promise 3 where two things happen at once: each test tells one race and what must come of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import Moved, StepScripts
from pipeline.supervisor import ledger
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.loading import LedgerReader, UnreadableGroup
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import ClosedGroup
from pipeline.testing import ManualWorker, a_group, a_template
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, broken, mixed

A_SPEC = StepSpec(target=2, n=4, over=1.0)


async def closed_groups(fleet: Fleet) -> list[ClosedGroup]:
    found = await fleet.reader.groups((await fleet.reader.closed(100)).get(RUN, []))
    return [group for group in found.values() if not isinstance(group, UnreadableGroup)]


async def test_two_supervisors_that_see_the_same_gap_launch_it_once(fleet: Fleet, keys: Keys) -> None:
    """Both look, both decide to launch three groups. The second is refused, and then sees that nothing is missing."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    first, second = await fleet.view(), await fleet.view()
    one, two = ledger.launch(first), ledger.launch(second)
    assert one is not None
    assert two is not None

    done = await fleet.steps.launch(first.basis, one, window=256)
    with pytest.raises(Moved):
        await fleet.steps.launch(second.basis, two, window=256)

    assert len(await fleet.members(keys.flying(RUN))) == done.groups == 3
    assert ledger.launch(await fleet.view()) is None


async def test_a_launch_whose_reply_was_lost_and_is_made_again_launches_once(fleet: Fleet, keys: Keys) -> None:
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    view = await fleet.view()
    action = ledger.launch(view)
    assert action is not None

    await fleet.steps.launch(view.basis, action, window=256)
    with pytest.raises(Moved):
        await fleet.steps.launch(view.basis, action, window=256)

    assert len(await fleet.members(keys.flying(RUN))) == 3


async def test_two_supervisors_that_account_the_same_group_give_one_verdict(fleet: Fleet) -> None:
    """The second one is refused; when it looks again the group is not there any more. The first verdict stands even against another."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    view, closed = await fleet.view(), await closed_groups(fleet)
    accounts = ledger.account(view, closed)

    _, words = await fleet.steps.account_groups(view.basis, accounts)
    with pytest.raises(Moved):
        await fleet.steps.account_groups(view.basis, accounts)
    fresh = (await fleet.view()).basis
    revision, again = await fleet.steps.account_groups(fresh, accounts)

    assert (words, again) == (["done"], ["again"])
    assert revision == fresh.revision
    assert len(await fleet.records("group")) == 1
    assert (await fleet.view()).steps[0].accepted == 1


async def test_the_last_place_of_a_step_is_taken_once(fleet: Fleet) -> None:
    """Two groups close at the same time, one place is left, and two supervisors hold one of them each."""
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=2.0))
    await fleet.supervise()
    await fleet.work()
    first, second, *_ = fleet.groups()
    await fleet.end(first, mixed)
    await fleet.end(second, mixed)
    view, closed = await fleet.view(), await closed_groups(fleet)
    mine, yours = ledger.account(view, closed[:1]), ledger.account(view, closed[1:])
    assert [account.step for account in (*mine, *yours)] == [0, 0]

    await fleet.steps.account_groups(view.basis, mine)
    with pytest.raises(Moved):
        await fleet.steps.account_groups(view.basis, yours)
    await fleet.supervise()

    [step] = await fleet.records("step")
    assert step["groups"] == first
    assert await fleet.members(fleet.scripts.keys.parked(RUN)) == [second]


async def test_the_scripts_hold_even_a_decision_that_breaks_the_rules(fleet: Fleet, keys: Keys) -> None:
    """On a fresh basis: a group for a full step, a step away from its target, a step that was reached, a launch beyond its bound."""
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=4.0))
    view = await fleet.view()
    action = ledger.launch(view)
    assert action is not None
    done = await fleet.steps.launch(view.basis, replace(action, groups=9, bound=2), window=256)
    assert done.groups == len(await fleet.members(keys.flying(RUN))) == 2
    await fleet.work()
    for group in fleet.groups():
        await fleet.end(group, mixed)
    one, two = ledger.account(await fleet.view(), await closed_groups(fleet))
    step = (await fleet.view()).steps[0]
    with pytest.raises(Moved):
        await fleet.steps.reach_step((await fleet.view()).basis, ledger.reach(view, step, ()))

    _, words = await fleet.steps.account_groups((await fleet.view()).basis, [one, replace(two, step=0)])
    assert words == ["done", "full"]
    await fleet.steps.reach_step((await fleet.view()).basis, ledger.reach(view, replace(step, accepted=1), ()))
    with pytest.raises(Moved):
        await fleet.steps.reach_step((await fleet.view()).basis, ledger.reach(view, replace(step, accepted=1), ()))

    assert [found["groups"] for found in await fleet.records("step")] == [one.group]
    assert await fleet.reader.groups([one.group]) == {}  # it has its verdict: nobody judges it again


async def test_a_step_is_reached_once(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    """Both see the target; a reach that is made again after a lost reply is refused too."""
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=2.0))
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    view = await fleet.view()
    await fleet.steps.account_groups(view.basis, ledger.account(view, await closed_groups(fleet)))
    view = await fleet.view()
    step = ledger.reached(view)
    assert step is not None
    action = ledger.reach(view, step, await fleet.reader.flying(RUN))

    await fleet.steps.reach_step(view.basis, action)
    for _ in range(2):
        with pytest.raises(Moved):
            await fleet.steps.reach_step(view.basis, action)
    await fleet.supervise()

    assert len(await fleet.records("step")) == 1
    assert await ask(client, "XLEN", keys.cancel) == 1


async def test_a_group_whose_member_finishes_before_the_cancel_runs_on(fleet: Fleet, keys: Keys) -> None:
    """A supervisor decided that a group has no finished member; one finishes while the decision is on its way.

    Its time was measured now, so cancelling it would favour short members: the script looks again and spares it.
    """
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=2.0))
    await fleet.supervise()
    await fleet.work()
    winner, late, *rest = fleet.groups()
    await fleet.end(winner, mixed)
    view = await fleet.view()
    await fleet.steps.account_groups(view.basis, ledger.account(view, await closed_groups(fleet)))
    view = await fleet.view()
    step = ledger.reached(view)
    assert step is not None
    action = ledger.reach(view, step, await fleet.reader.flying(RUN))
    assert late in action.redundant

    await fleet.end(late, mixed, [1])
    _, given_up = await fleet.steps.reach_step(view.basis, action)

    assert set(given_up) == set(rest)
    assert await fleet.members(keys.flying(RUN)) == [late]


async def test_a_group_that_begins_before_the_cancel_runs_on_while_steps_are_open(fleet: Fleet, keys: Keys) -> None:
    """With other steps open nothing that was begun is cancelled; one begins while the decision is on its way.

    On a busy machine that is a tenth of a second, in which a fleet begins some members at each target: they were sampled for nothing (8 %
    of all tokens in `bench dapo` with over-sampling 2 and 4 steps ahead). The script looks again and spares their groups.
    """
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=2, over=4.0))
    await fleet.open(1, StepSpec(target=1, n=2, over=1.0))
    await fleet.supervise()
    await fleet.work()
    winner, *_ = fleet.groups()
    await fleet.end(winner, mixed)
    view = await fleet.view()
    await fleet.steps.account_groups(view.basis, ledger.account(view, await closed_groups(fleet)))
    view = await fleet.view()
    step = ledger.reached(view)
    assert step is not None
    waiting = [replace(group, begun=0) for group in await fleet.reader.flying(RUN)]  # as they stood when the supervisor looked
    action = ledger.reach(view, step, waiting)
    assert action.redundant

    _, given_up = await fleet.steps.reach_step(view.basis, action)

    assert given_up == []


async def test_a_group_that_closes_before_the_cancel_is_kept(fleet: Fleet, keys: Keys) -> None:
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=2.0))
    await fleet.supervise()
    await fleet.work()
    winner, late, *_ = fleet.groups()
    await fleet.end(winner, mixed)
    view = await fleet.view()
    await fleet.steps.account_groups(view.basis, ledger.account(view, await closed_groups(fleet)))
    view = await fleet.view()
    step = ledger.reached(view)
    assert step is not None
    action = ledger.reach(view, step, await fleet.reader.flying(RUN))

    await fleet.end(late, broken)  # no member finished, but the group is closed
    await fleet.steps.reach_step(view.basis, action)
    await fleet.open(1, A_SPEC)
    await fleet.supervise()

    verdicts = {record["grp"]: record["verdict"] for record in await fleet.records("group")}
    assert verdicts[late] == "dropped"


async def test_a_decision_for_a_trainer_that_was_replaced_meanwhile_is_refused(fleet: Fleet) -> None:
    """A supervisor judged a group by incarnation 1; before it acts, a new trainer takes the run. The group must not join its step."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    view = await fleet.view()
    accounts = ledger.account(view, await closed_groups(fleet))

    await fleet.connect(nonce="second")
    with pytest.raises(Moved):
        await fleet.steps.account_groups(view.basis, accounts)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()

    assert (await fleet.view()).steps[0].accepted == 0
    assert [record["verdict"] for record in await fleet.records("group")] == ["cancelled"]


async def test_a_member_that_ends_twice_counts_once(fleet: Fleet) -> None:
    """A second delivery with another reward: the first one stands."""
    await fleet.push("e0-0")
    await fleet.open(0, StepSpec(target=1, n=4))
    await fleet.supervise()
    await fleet.work()
    group = f"{RUN}.e0-0.0"
    held = dict(fleet.held)
    await fleet.end(group, all_right, [0])
    fleet.held[f"{group}.0"] = held[f"{group}.0"]

    assert await fleet.end(group, lambda _g, _m: mixed("", 0), [0]) == ["again"]
    await fleet.end(group, lambda _g, _m: mixed("", 0))
    await fleet.supervise()

    [record] = await fleet.records("group")
    assert record["rews"] == "1,0,0,0"


async def test_events_that_come_twice_late_or_never_change_nothing(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    first, second, *_ = fleet.groups()
    await fleet.end(first, mixed)
    for _ in range(3):
        await ask(client, "XADD", keys.reward, "*", "kind", "group_closed", "run", RUN, "grp", first, "prompt", "e0-0")
    await fleet.drain.round([RUN], every_run=False)
    await fleet.end(second, mixed)
    await ask(client, "XTRIM", keys.reward, "MAXLEN", 0)

    await fleet.drain.round([], every_run=False)
    for _ in range(3):
        await fleet.drain.round([RUN, "unknown"], every_run=False)

    assert [step["groups"].split() for step in await fleet.records("step")] == [[first, second]]
    assert len(await fleet.records("group")) == 2


async def test_many_supervisors_at_once_reach_every_step_once(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    """Four supervisors act on every change at the same time, while workers end groups and steps are opened ahead."""
    scripts = Scripts(client, keys)
    drains = [Drain(LedgerReader(client, keys), StepScripts(client, keys), window=256) for _ in range(4)]
    worker = Fleet(scripts, fleet.steps, drains[0], fleet.reader, incarnation=fleet.incarnation)
    await worker.push_many(300)
    spec = StepSpec(target=3, n=2, over=1.5)
    launched: Counter[str] = Counter()
    for index in range(2):
        await worker.open(index, spec)
    opened = 2
    while len(await worker.records("step")) < 8:
        await asyncio.gather(*(drain.round([RUN], every_run=True) for drain in drains))
        await worker.work()
        launched.update(worker.groups())
        ends = worker.groups()
        for at, group in enumerate(ends):
            await worker.end(group, all_right if at % 3 == 0 else mixed)
        while opened < len(await worker.records("step")) + 2:
            await worker.open(opened, spec)
            opened += 1

    steps = await worker.records("step")
    assert [step["k"] for step in steps] == [str(k) for k in range(len(steps))]
    joined = [group for step in steps for group in step["groups"].split()]
    assert all(len(step["groups"].split()) == 3 for step in steps)
    assert max(Counter(joined).values()) == 1
    assert max(Counter(record["grp"] for record in await worker.records("group")).values()) == 1
    assert max(Counter(record["job"] for record in await worker.records("job")).values()) == 1
    assert max(launched.values()) == 1
    marks = await worker.hash(keys.prompt_marks(RUN))
    assert sum(mark.startswith("trained") for mark in marks.values()) >= len(joined)


async def test_a_group_that_nobody_recorded_as_closed_is_found(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    """A replica went back in time: the group is closed, its line in the record of closed groups is lost."""
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=1.0))
    await fleet.supervise()
    await fleet.work()
    first = fleet.groups()[0]
    await fleet.end(first, mixed)
    await ask(client, "ZREM", keys.closed, first)

    await fleet.supervise()

    assert [step["groups"] for step in await fleet.records("step")] == [first]


async def test_a_group_of_which_nothing_is_left_does_not_block_its_run(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    await fleet.push("e0-0")
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    group = f"{RUN}.e0-0.0"
    await ask(client, "DEL", keys.group(group), keys.members(group))

    await fleet.supervise()
    await fleet.supervise()

    assert [step["short"] for step in await fleet.records("step")] == ["1"]


@pytest.mark.parametrize("damage", ["wrong type", "no line of ours"])
async def test_a_closed_group_that_cannot_be_read_hurts_itself_only(damage: str, fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=2.0))
    await fleet.supervise()
    await fleet.work()
    bad, good, *_ = fleet.groups()
    await fleet.end(bad, mixed)
    if damage == "wrong type":
        await ask(client, "DEL", keys.members(bad))
        await ask(client, "SET", keys.members(bad), "x", "PX", 60_000)
    else:
        await ask(client, "HSET", keys.members(bad), 0, "hello")
    await fleet.end(good, mixed)

    await fleet.supervise()

    assert [step["groups"] for step in await fleet.records("step")] == [good]
    assert await fleet.members(keys.closed) == []
    [dead] = [fields for _, fields in await ask(client, "XRANGE", keys.dead, "-", "+")]
    assert dead[b"grp"].decode() == bad


async def test_a_run_whose_keys_are_of_another_type_does_not_keep_the_others_waiting(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    await fleet.scripts.connect_run("broken", nonce="n", ttl_s=3600.0)
    await ask(client, "SET", keys.steps("broken"), "x", "PX", 60_000)
    await ask(client, "HSET", keys.run("broken"), "first", 0)
    await ask(client, "ZADD", keys.closed, *[word for i in range(300) for word in (i + 1, f"broken.p{i}.0")])
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=4, over=1.0))
    await fleet.supervise()
    await fleet.work()
    first = fleet.groups()[0]
    await fleet.end(first, mixed)

    await fleet.supervise()

    assert [step["groups"] for step in await fleet.records("step")] == [first]


async def test_a_group_that_a_client_queued_itself_gets_a_verdict_and_keeps_its_bodies(
    fleet: Fleet, keys: Keys, client: AsyncClient
) -> None:
    await fleet.scripts.accept(
        RUN, fleet.incarnation, a_template(), "tpl1", b"t", [a_group(RUN, "own", members=4)], max_waiting=100, window=256
    )
    await fleet.open(0, A_SPEC)
    await fleet.work()
    await fleet.end(f"{RUN}.own.0", all_right)

    await fleet.supervise()

    [record] = await fleet.records("group")
    assert (record["verdict"], record["step"]) == ("filtered", "")
    assert await ask(client, "EXISTS", keys.body(f"{RUN}.own.0.0", 2, "run")) == 1
    assert (await fleet.view()).judged == 0


async def test_closed_groups_of_a_run_that_expired_leave_the_record(fleet: Fleet, keys: Keys, client: AsyncClient) -> None:
    await fleet.push_many(4)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    await ask(client, "DEL", keys.run(RUN))

    await fleet.supervise()

    assert await fleet.members(keys.closed) == []


async def test_workers_hear_of_a_cancel_by_the_group(fleet: Fleet) -> None:
    """A worker that missed the message learns it when it renews: the mark is in the job."""
    await fleet.push_many(20)
    await fleet.open(0, StepSpec(target=1, n=2, over=2.0))
    await fleet.supervise()
    await fleet.work()
    winner, other, *_ = fleet.groups()
    await fleet.end(winner, mixed)
    await fleet.supervise()

    worker = ManualWorker(fleet.scripts, Stage.EVAL)
    assert await worker.renew(*[held for job, held in fleet.held.items() if job.startswith(other)]) == (True, ["redundant", "redundant"])
