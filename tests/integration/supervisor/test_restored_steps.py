"""A ledger that went back in time is put where its trainer stands: what that has had is done with, what it has not had comes later."""

from __future__ import annotations

from pipeline.redis_client import ask
from pipeline.scripts.trainer_calls import HadGroup, TrainerScripts
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import a_template
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

A_SPEC = StepSpec(target=2, n=2, over=1.0)


def had(*groups: str) -> list[HadGroup]:
    return [HadGroup(group, group.split(".")[1], 0, "trained") for group in groups]


async def restore(fleet: Fleet, first: int, last: int, groups: list[HadGroup]) -> tuple[frozenset[int], frozenset[str]]:
    scripts = TrainerScripts(fleet.scripts.run_script.client, fleet.scripts.keys)
    return await scripts.restore_steps(RUN, fleet.incarnation, first, last, groups)


async def test_groups_that_reached_the_lost_step_meanwhile_go_to_the_next_one(fleet: Fleet) -> None:
    """The supervisor was quicker than the trainer. In the window step 0 had groups 0 and 1; now it was reached with 2 and 3, and step 1 has
    group 0. Both steps go, groups 2 and 3 make step 1, the members of group 1 are cancelled, and nothing is sampled twice."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.open(1, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    first, second, third, fourth = fleet.groups()[:4]
    for group in (third, fourth, first):
        await fleet.end(group, mixed)
        await fleet.supervise()
    assert (await fleet.records("step"))[0]["groups"].split() == [third, fourth]
    epoch = {name: value for name, value in (await fleet.hash(fleet.scripts.keys.run(RUN))).items() if name.startswith("epoch")}
    assert epoch == {"epoch.0.pushed": "20", "epoch.0.trained": "3"}

    gone, taken_back = await restore(fleet, 0, 0, had(first, second))

    assert (sorted(gone), sorted(taken_back)) == ([0, 1], [third, fourth])
    assert await fleet.records("step") == []
    assert [record["grp"] for record in await fleet.records("group")] == [first]
    await fleet.open(1, A_SPEC)
    words = await fleet.end(second, mixed)
    await fleet.supervise()
    [step] = await fleet.records("step")
    run = await fleet.hash(fleet.scripts.keys.run(RUN))
    assert (step["k"], set(step["groups"].split())) == ("1", {third, fourth})
    assert words == ["cx:redundant"] * 2
    assert (await fleet.mark("e0-0")).split()[0] == (await fleet.mark("e0-1")).split()[0] == "trained"
    assert (run["epoch.0.trained"], run["prompts.trained"], run["groups.informative"]) == ("4", "4", "3")
    assert await fleet.records("group") != []
    assert await restore(fleet, 0, 0, had(first, second)) == (frozenset(), frozenset())


async def test_prompts_that_wait_or_were_never_heard_of_are_done_with(fleet: Fleet) -> None:
    """The launch of group 0 was lost, and that prompt 30 was pushed at all."""
    await fleet.push_many(8)

    await restore(fleet, 0, 0, had(f"{RUN}.e0-0.0", f"{RUN}.e0-30.0"))

    assert await fleet.members(fleet.scripts.keys.reserve(RUN)) == [f"e0-{row}" for row in range(1, 8)]
    assert await fleet.push("e0-0", "e0-30") == [False, False]
    run = await fleet.hash(fleet.scripts.keys.run(RUN))
    assert (run["prompts.pushed"], run["epoch.0.pushed"], run["epoch.0.trained"]) == ("9", "9", "2")


async def test_a_trainer_that_went_back_behind_open_steps_does_not_fill_them(fleet: Fleet) -> None:
    """Its state is of another history than what stands in Redis, where step 0 is open: nobody will ask for that one."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.connect("second")

    body = fleet.steps.open_step(RUN, fleet.incarnation, 3, A_SPEC, a_template(), "tpl1", base=fleet.incarnation)

    assert await body == "opened"
    assert await fleet.members(fleet.scripts.keys.steps(RUN)) == ["3"]
    assert (await fleet.hash(fleet.scripts.keys.run(RUN)))["first"] == "3"
    assert await ask(fleet.scripts.run_script.client, "EXISTS", fleet.scripts.keys.step(RUN, 0)) == 0
