"""Informativeness policies of other packages: who knows them, and what becomes of groups whose policy somebody does not know (ADR 6)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.informative import BUILT_IN, Policy
from pipeline.supervisor.step_spec import StepSpec
from tests.integration.supervisor.fleet import RUN, Fleet, mixed


def first_one_right(values: Sequence[float], spec: StepSpec) -> bool:
    """Somebody's own idea of a signal."""
    return values[0] > spec.policy_args.get("above", 0.5)


OWN: dict[str, Policy] = {**BUILT_IN, "first_one_right": first_one_right}
SPEC = StepSpec(target=1, n=2, policy="first_one_right", policy_args={"above": -1.0})


def a_drain(fleet: Fleet, policies: dict[str, Policy] | None = None) -> Drain:
    """Another supervisor."""
    return Drain(fleet.reader, fleet.steps, window=256, policies=policies or OWN)


async def test_a_step_with_a_policy_that_no_living_supervisor_knows_is_refused(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    await fleet.supervise()

    with pytest.raises(InvalidRequest, match=r"\(every, pass_rate_between, spread\), got 'first_one_right'") as refused:
        await fleet.open(1, SPEC)
    assert refused.value.field == "policy"
    assert (await fleet.view()).steps == ()
    await a_drain(fleet).round((), every_run=True)
    assert await fleet.open(1, SPEC) == "opened"
    assert await ask(client, "TTL", keys.policies) == -1


async def test_while_no_supervisor_has_said_what_it_knows_any_policy_may_be_asked_for(
    fleet: Fleet, client: AsyncClient, keys: Keys
) -> None:
    await fleet.supervise()
    names = [word.decode() for word in await ask(client, "ZRANGE", keys.policies, 0, -1)]
    seconds = int((await ask(client, "TIME"))[0])
    await client.zadd(keys.policies, dict.fromkeys(names, (seconds - 60) * 1000))

    assert await fleet.open(1, SPEC) == "opened"


async def test_a_supervisor_leaves_groups_of_a_policy_that_it_does_not_know_to_one_that_does(fleet: Fleet, keys: Keys) -> None:
    """It goes on with all others, and never gives a wrong verdict."""
    await fleet.push_many(8)
    await fleet.open(1, SPEC)
    await fleet.open(2, StepSpec(target=1, n=3))
    await a_drain(fleet).round((), every_run=True)
    await fleet.work()
    groups = fleet.groups()
    for group in groups:
        await fleet.end(group, mixed)

    await fleet.supervise()

    left = await fleet.members(keys.closed)
    steps = {(await fleet.hash(keys.group(name)))["step"] for name in left}
    assert steps == {"1"}
    assert "informative" in {record["verdict"] for record in await fleet.records("group")}
    await a_drain(fleet).round((), every_run=True)
    assert await fleet.members(keys.closed) == []
    assert {record["k"] for record in await fleet.records("step")} == {"1", "2"}


async def test_a_policy_that_raises_drops_the_group_and_the_supervisor_lives(fleet: Fleet) -> None:
    def broken(values: Sequence[float], spec: StepSpec) -> bool:
        raise RuntimeError("no idea")

    drain = a_drain(fleet, {**BUILT_IN, "first_one_right": broken})
    await fleet.push("e0-0")
    await fleet.open(1, SPEC)
    await drain.round((), every_run=True)
    await fleet.work()
    await fleet.end(f"{RUN}.e0-0.0", mixed)
    await drain.round((), every_run=True)

    [record] = await fleet.records("group")
    assert (record["verdict"], record["why"]) == ("dropped", "policy first_one_right raised RuntimeError: no idea")
    assert (await fleet.mark("e0-0")).startswith("flying 1 1 1")
