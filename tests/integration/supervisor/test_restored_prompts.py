"""A ledger that went back in time, where a prompt flies under another draw than its trainer had: it is trained once all the same.

The draw differs where the lost window has given a group up, or dropped it: in the window its prompt returned and was drawn again, and the
trainer had that draw. Redis stands where the first one was in flight.
"""

from __future__ import annotations

from pipeline.scripts.trainer_calls import HadGroup, TrainerScripts
from pipeline.supervisor.step_spec import StepSpec
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

A_SPEC = StepSpec(target=2, n=2, over=1.0)


async def restore(fleet: Fleet, *groups: HadGroup, first: int = 0, last: int = 0) -> tuple[frozenset[int], frozenset[str]]:
    scripts = TrainerScripts(fleet.scripts.run_script.client, fleet.scripts.keys)
    return await scripts.restore_steps(RUN, fleet.incarnation, first, last, groups)


def had(prompt: str, draw: int) -> HadGroup:
    return HadGroup(f"{RUN}.{prompt}.{draw}", prompt, draw, "trained")


async def flying(fleet: Fleet) -> list[str]:
    """Two steps are open, and groups are at work for them."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.open(1, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    return fleet.groups()


async def joined(fleet: Fleet) -> set[str]:
    """Prompts of the groups that are in a step that is still to come, whatever step that is."""
    found: set[str] = set()
    for k in await fleet.members(fleet.scripts.keys.steps(RUN)):
        lines = await fleet.hash(fleet.scripts.keys.step_groups(RUN, int(k)))
        found |= {group.split(".")[1] for group, line in lines.items() if line.startswith("informative|")}
    return found


async def test_another_draw_that_joined_the_lost_step_joins_no_later_one(fleet: Fleet) -> None:
    """The trainer had draw 1 of e0-0 in step 0. Draw 0 was quicker here: it is in step 0."""
    first, second = (await flying(fleet))[:2]
    for group in (first, second):
        await fleet.end(group, mixed)
    await fleet.supervise()

    gone, taken_back = await restore(fleet, had("e0-0", 1))
    await fleet.open(2, A_SPEC)
    await fleet.supervise()

    assert (gone, taken_back) == (frozenset({0}), frozenset({first, second}))
    assert await joined(fleet) == {"e0-1"}
    assert (await fleet.mark("e0-0")).split()[0] == "trained"
    run = await fleet.hash(fleet.scripts.keys.run(RUN))
    assert (run["epoch.0.trained"], run["prompts.trained"]) == ("2", "2")


async def test_another_draw_that_joined_a_later_step_takes_that_step_with_it(fleet: Fleet) -> None:
    """Draw 0 of e0-2 is in step 1, which would be given out next; the trainer had draw 1 in step 0."""
    groups = (await flying(fleet))[:4]
    for group in groups:
        await fleet.end(group, mixed)
        await fleet.supervise()
    assert await joined(fleet) == {"e0-0", "e0-1", "e0-2", "e0-3"}

    gone, _ = await restore(fleet, had("e0-0", 0), had("e0-1", 0), had("e0-2", 1))
    await fleet.open(1, A_SPEC)
    await fleet.supervise()

    assert gone == {0, 1}
    assert await joined(fleet) == {"e0-3"}


async def test_another_draw_that_has_ended_and_is_in_no_step_yet_joins_none(fleet: Fleet) -> None:
    """It has closed; no supervisor has seen it."""
    first, second = (await flying(fleet))[:2]
    await fleet.end(first, mixed)
    await fleet.end(second, mixed)

    await restore(fleet, had("e0-0", 1), had("e0-1", 0))
    await fleet.supervise()

    assert await joined(fleet) == set()
    # it leaves a record, so that the results of its members are let go of; of the draw that it had the trainer has one
    assert [(record["grp"], record["verdict"]) for record in await fleet.records("group")] == [(first, "cancelled")]
    assert (await fleet.hash(fleet.scripts.keys.group(second)))["why"] == "its trainer had it"


async def test_what_a_checkpoint_was_done_with_leaves_a_record_whatever_became_of_it_here(fleet: Fleet) -> None:
    """Nobody has these groups any more: the trainer that had them has died. Step 0 has two, one has closed, one is at work, one waits.
    Without a record the results of their members stayed for good, and counted as unread."""
    groups = (await flying(fleet))[:3]
    for group in groups[:2]:
        await fleet.end(group, mixed)
    await fleet.supervise()
    await fleet.end(groups[2], mixed)
    working, waiting = fleet.groups()[0], (await fleet.members(fleet.scripts.keys.reserve(RUN)))[0]

    await restore(fleet, *(HadGroup("", group.split(".")[1], 0, "trained") for group in (*groups, working, f"{RUN}.{waiting}.0")))
    await fleet.end(working, mixed)
    await fleet.supervise()

    assert await joined(fleet) == set()
    assert {record["grp"]: record["verdict"] for record in await fleet.records("group")} == dict.fromkeys((*groups, working), "cancelled")
    assert waiting not in await fleet.members(fleet.scripts.keys.reserve(RUN))
    assert (await fleet.hash(fleet.scripts.keys.run(RUN)))["epoch.0.trained"] == "5"
