"""A cancelled step ends short with what joined it; what was in flight for it is given up, and its prompts return whole."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.errors import InvalidRequest, StaleIncarnation
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.testing import ManualWorker
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

A_SPEC = StepSpec(target=3, n=4, over=1.0)


async def ends_of(fleet: Fleet) -> Counter[tuple[str, str]]:
    """Terminal records by outcome and reason."""
    return Counter((record["out"], record["why"]) for record in await fleet.records("job"))


async def test_it_hands_over_what_joined_and_its_prompts_return(fleet: Fleet) -> None:
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    joined, *flying = fleet.groups()
    await fleet.end(joined, mixed)
    await fleet.supervise()
    flying = [group for group in flying if await ask_state(fleet, group) == "open"]

    counts = await fleet.steps.cancel_step(RUN, fleet.incarnation, 0, "user")

    [step] = await fleet.records("step")
    assert (step["k"], step["groups"].split(), step["short"], step["cx"], int(step["redundant"])) == (
        "0",
        [joined],
        "1",
        "user",
        len(flying),
    )
    assert counts["groups"] == len(flying)
    assert counts["settled"] + counts["running"] == 4 * len(flying)
    assert await fleet.members(fleet.scripts.keys.flying(RUN)) == []
    for group in flying:
        assert (await fleet.mark(group.split(".")[1])).startswith("reserve 1 1 0")
    messages = await ask(fleet.scripts.run_script.client, "XRANGE", fleet.scripts.keys.cancel, "-", "+")
    assert [sorted(fields[b"ids"].decode().split()) for _, fields in messages] == [sorted(flying)]
    worker = ManualWorker(fleet.scripts, Stage.EVAL)
    for job in [name for name in fleet.held if name.rpartition(".")[0] in flying]:
        assert await worker.settle(fleet.held.pop(job)) == ["cx:user"]
    await fleet.supervise()
    assert {record["verdict"] for record in await fleet.records("group") if record["grp"] in flying} == {"cancelled"}
    assert (await ends_of(fleet))["cancelled", "user"] == 4 * len(flying)
    assert await fleet.members(fleet.scripts.keys.flying(RUN)) == [], "no step asks for more"


async def ask_state(fleet: Fleet, group: str) -> str:
    return (await fleet.hash(fleet.scripts.keys.group(group)))["st"]


async def test_groups_of_other_open_steps_go_on(fleet: Fleet) -> None:
    """Work belongs to the run: what the next step launched is not the cancelled step's."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    first = set(await fleet.members(fleet.scripts.keys.flying(RUN)))
    await fleet.open(1, StepSpec(target=8, n=4, over=1.0))
    await fleet.supervise()
    second = set(await fleet.members(fleet.scripts.keys.flying(RUN))) - first
    assert second

    await fleet.steps.cancel_step(RUN, fleet.incarnation, 0, "user")

    assert set(await fleet.members(fleet.scripts.keys.flying(RUN))) == second
    assert [step.index for step in (await fleet.view()).steps] == [1]
    returned = [group.split(".")[1] for group in sorted(first)]
    assert (await fleet.members(fleet.scripts.keys.reserve(RUN)))[: len(returned)] == returned, "whole, before all that were never drawn"


async def test_again_after_others_were_reached_gives_up_nothing_of_theirs(fleet: Fleet, keys: Keys) -> None:
    """A step is cancelled while another is open, whose groups go on. That one is reached; then the first cancel comes again (its reply was
    lost, somebody asks twice): no step is open, so all that was in flight for the next one was given up."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.open(1, StepSpec(target=1, n=4, over=4.0, cancel=CancelRule.CARRY))
    await fleet.supervise()
    await fleet.steps.cancel_step(RUN, fleet.incarnation, 0, "user")
    await fleet.supervise()
    await fleet.work()
    first, *_ = [group for group in fleet.groups() if group in await fleet.members(keys.flying(RUN))]
    await fleet.end(first, mixed)
    await fleet.supervise()
    flying = await fleet.members(keys.flying(RUN))
    assert len(await fleet.records("step")) == 2
    assert flying

    counts = await fleet.steps.cancel_step(RUN, fleet.incarnation, 0, "user")

    assert counts["groups"] == 0
    assert await fleet.members(keys.flying(RUN)) == flying


async def test_again_and_in_vain(fleet: Fleet) -> None:
    """A cancel whose reply was lost is made again. A step that has ended, that does not exist, or that is another trainer's is none."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.steps.cancel_step(RUN, fleet.incarnation, 0, "user")

    assert (await fleet.steps.cancel_step(RUN, fleet.incarnation, 0, "overload"))["groups"] == 0

    assert [step["cx"] for step in await fleet.records("step")] == ["user"]
    with pytest.raises(InvalidRequest, match="no step 7"):
        await fleet.steps.cancel_step(RUN, fleet.incarnation, 7, "user")
    await fleet.open(1, StepSpec(target=1, n=4, over=1.0))
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], mixed)
    await fleet.supervise()
    with pytest.raises(InvalidRequest, match=r"has ended \(full\)"):
        await fleet.steps.cancel_step(RUN, fleet.incarnation, 1, "user")
    await fleet.connect("next")
    with pytest.raises(StaleIncarnation):
        await fleet.steps.cancel_step(RUN, 1, 1, "user")


async def test_a_canceller_that_dies_after_the_mark_has_cancelled(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """The step has its record, the groups their marks: what nobody settled is refused, or settled by the janitor."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    groups = await fleet.members(keys.flying(RUN))

    await fleet.steps.run_script("cancel_step", RUN, fleet.incarnation, 0, "user", 256)

    assert await ask(client, "XLEN", keys.stage_stream(Stage.INIT)) > 0
    await fleet.scripts.reconcile(RUN)
    assert (await ends_of(fleet)) == {("cancelled", "user"): 4 * len(groups)}
    await fleet.supervise()
    assert [record["verdict"] for record in await fleet.records("group")] == ["cancelled"] * len(groups)
