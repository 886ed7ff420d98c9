"""Deterministic steps through the scripts: groups close in any order, some break and are drawn again, and the same prompts are trained."""

from __future__ import annotations

import random

import pytest

from pipeline.messages import Settlement
from pipeline.step_request import StepRequest
from pipeline.testing import a_settlement
from tests.integration.supervisor.fleet import RUN, Fleet, broken

STEPS, TARGET = 3, 2
REQUEST = StepRequest(task="math", groups=TARGET, n=2, over=2.0, max_redraws=50, deterministic=True)
pytestmark = pytest.mark.one_server


def place_of(group: str) -> int:
    return int(group.split(".")[1].partition("-")[2])


def by_prompt(group: str, member: int) -> Settlement:
    """Every third prompt teaches nothing."""
    return a_settlement(1.0 if place_of(group) % 3 == 1 else float(member))


async def trained(fleet: Fleet, seed: int) -> list[list[int]]:
    """Places of the prompts of each step, when groups end in the order of this seed."""
    rng = random.Random(seed)
    await fleet.connect(f"trainer-{seed}")
    await fleet.push_many(60)
    steps: list[list[int]] = []
    for index in range(1, STEPS + 1):
        await fleet.open(index, REQUEST.spec(), REQUEST.template())
        for _ in range(400):
            await fleet.supervise()
            if len(await fleet.records("step")) == index:
                break
            await fleet.work()
            # late ones first, mostly: what a fast fleet would never do
            groups = sorted(fleet.groups(), key=lambda group: -place_of(group) if rng.random() < 0.6 else rng.random())
            for group in groups[:3]:
                await fleet.end(group, broken if rng.random() < 0.25 else by_prompt)
        else:
            raise AssertionError(f"step {index} has no end: {await fleet.view()}")
        record = (await fleet.records("step"))[-1]
        steps.append([place_of(group) for group in record["groups"].split()])
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_what_is_trained_is_the_same_in_whatever_order_groups_end(fleet: Fleet, seed: int) -> None:
    informative = [place for place in range(60) if place % 3 != 1]

    steps = await trained(fleet, seed)

    assert steps == [informative[at : at + TARGET] for at in range(0, STEPS * TARGET, TARGET)]


async def test_what_closed_beyond_the_target_returns_whole(fleet: Fleet) -> None:
    """Trained, filtered or not: it belongs to the weights of a step that is over."""
    await fleet.connect()
    await fleet.push_many(12)
    await fleet.open(1, REQUEST.spec(), REQUEST.template())
    await fleet.supervise()
    await fleet.work()
    for group in sorted(fleet.groups(), key=place_of, reverse=True):
        await fleet.end(group, by_prompt)

    await fleet.supervise()
    await fleet.supervise()

    (step,) = await fleet.records("step")
    assert [place_of(group) for group in step["groups"].split()] == [0, 2]
    verdicts = {place_of(record["grp"]): (record["verdict"], record["step"]) for record in await fleet.records("group")}
    assert verdicts[1] == ("filtered", "1")
    assert {verdicts[place][0] for place in verdicts if place > 2} == {"cancelled"}
    assert await fleet.members(fleet.scripts.keys.closed) == []
    assert await fleet.members(fleet.scripts.keys.reserve(RUN)) == [f"e0-{place}" for place in range(3, 12)]
