"""Keys that somebody wrote over, deleted or damaged: what they were of is lost and told, all else goes on."""

from __future__ import annotations

import pytest

from pipeline.codec import encode
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import QueueAudit, a_prompt, a_settlement, a_template
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

pytestmark = pytest.mark.one_server
OTHER = "run2"
TTL_S = 600


async def write_over(client: AsyncClient, key: str) -> None:
    await ask(client, "SET", key, "none of ours", "EX", TTL_S)


async def damage(client: AsyncClient, keys: Keys, group: str, how: str) -> None:
    match how:
        case "hash gone":
            await ask(client, "DEL", keys.group(group))
        case "hash written over":
            await write_over(client, keys.group(group))
        case "a line that is none":
            await ask(client, "HSET", keys.members(group), "0", "none of ours")


DAMAGE = ("hash gone", "hash written over", "a line that is none")


@pytest.mark.parametrize("shared", ["runs", "policies", "classes", "streams", "z:closed"])
async def test_a_supervisor_outlives_a_shared_key_that_is_none_of_ours(shared: str, fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """A round asked them before it came to any run, so one that was written over ended every supervisor, and each that was started anew."""
    await fleet.push_many(4)
    await fleet.open(0, StepSpec(target=2, n=2, over=1.0))
    await write_over(client, keys.key(shared))

    await fleet.supervise()
    await fleet.drain.round([RUN], every_run=False)

    await ask(client, "DEL", keys.key(shared))
    await ask(client, "ZADD", keys.key("runs"), 1, RUN)
    await ask(client, "SADD", keys.key("classes"), "none")
    await fleet.supervise()
    assert len(await fleet.members(keys.flying(RUN))) >= 2


async def test_a_run_that_was_written_over_keeps_no_other_waiting(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """All runs were asked for their first step in one call, which failed for one that is a string: no run was looked at by the clock any
    more, and a lost wake-up was lost for good."""
    incarnation = await fleet.scripts.connect_run(OTHER, nonce="other", ttl_s=3600.0)
    await fleet.steps.push_prompts(OTHER, incarnation, [(f"e0-{i}", encode(a_prompt(f"e0-{i}"))) for i in range(4)])
    await fleet.steps.open_step(OTHER, incarnation, 0, StepSpec(target=2, n=2, over=1.0), a_template(), "tpl1")
    await write_over(client, keys.run(RUN))

    await fleet.supervise()

    assert len(await fleet.members(keys.flying(OTHER))) >= 2


@pytest.mark.parametrize("how", DAMAGE)
async def test_a_parked_group_that_is_damaged_does_not_keep_the_last_step_open(
    how: str, fleet: Fleet, client: AsyncClient, keys: Keys
) -> None:
    """It was left out of what the rules looked at, and stayed where it was parked: the step was to end short, and the script refused it,
    for ever."""
    await fleet.push_many(8)
    await fleet.open(0, StepSpec(target=1, n=2, over=3.0))
    await fleet.supervise()
    await fleet.work()
    for group in fleet.groups():
        await fleet.end(group, mixed)
    await fleet.supervise()
    first, *_ = await fleet.members(keys.parked(RUN))
    await damage(client, keys, first, how)
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    await fleet.open(1, StepSpec(target=50, n=2, over=3.0))

    for _ in range(4):
        await fleet.supervise()
        await fleet.work()
        for group in fleet.groups():
            await fleet.end(group, mixed)

    _, last = await fleet.records("step")
    assert last["short"] == "1"
    assert first not in last["groups"].split()
    assert [line["grp"] for line in await QueueAudit(client, keys).entries(keys.dead)] == [first]
    assert await fleet.members(keys.parked(RUN)) == []


@pytest.mark.parametrize("how", DAMAGE)
async def test_the_prompt_of_a_damaged_group_is_dead_so_that_its_epoch_adds_up(
    how: str, fleet: Fleet, client: AsyncClient, keys: Keys
) -> None:
    """It counted as in flight for ever: nowhere among trained, filtered, dead and left, and a trainer that went back could not push it
    again. With its hash written over it stopped the whole run: who looks for stuck groups failed at it each time."""
    await fleet.push_many(4)
    await fleet.open(0, StepSpec(target=50, n=2, over=3.0))
    await fleet.supervise()
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    await fleet.work()
    victim, *_ = fleet.groups()
    for group in fleet.groups():
        await fleet.end(group, mixed)
    await damage(client, keys, victim, how)

    for _ in range(2):
        await fleet.supervise()

    [step] = await fleet.records("step")
    assert len(step["groups"].split()) == 3
    run = await fleet.hash(keys.run(RUN))
    assert {name: run.get(f"epoch.0.{name}") for name in ("pushed", "trained", "dead")} == {"pushed": "4", "trained": "3", "dead": "1"}
    await fleet.connect(nonce="goes back")
    assert await fleet.push("e0-0") == [True]


async def test_a_damaged_group_leaves_also_when_nobody_can_be_told(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """The stream of failures was written over as well: the script stopped after it had taken the group out, and the prompt stayed
    in flight."""
    await fleet.push_many(1)
    await fleet.open(0, StepSpec(target=2, n=2, over=1.0))
    await fleet.supervise()
    await fleet.steps.end_prompts(RUN, fleet.incarnation)
    await fleet.work()
    [victim] = fleet.groups()
    await fleet.end(victim, mixed)
    await damage(client, keys, victim, "a line that is none")
    await write_over(client, keys.dead)

    for _ in range(2):
        await fleet.supervise()

    assert (await fleet.mark("e0-0")).startswith("dead")
    assert [step["groups"] for step in await fleet.records("step")] == [""]


@pytest.mark.parametrize("name", ["a|{b", "|{", "{|}", "x|", '"', "ü\n\u2028"])
async def test_a_component_may_have_any_name(name: str, fleet: Fleet) -> None:
    """A bar and a brace in a name were taken for the beginning of the components: each group of such a task was unreadable, and lost."""
    await fleet.push_many(3)
    await fleet.open(0, StepSpec(target=2, n=2, over=1.0, component=name))
    await fleet.supervise()
    await fleet.work()

    for group in fleet.groups():
        await fleet.end(group, lambda _, member: a_settlement(0.5, components={"score": 0.5, name: float(member)}))
    await fleet.supervise()

    [step] = await fleet.records("step")
    assert len(step["groups"].split()) == 2


@pytest.mark.parametrize("how", ["hash gone", "hash written over"])
async def test_a_group_in_flight_that_is_damaged_does_not_keep_its_run(how: str, fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """A step reads all groups in flight when it has its target; one written over failed the call, and the step was never reached."""
    await fleet.push_many(6)
    await fleet.open(0, StepSpec(target=1, n=2, over=3.0))
    await fleet.supervise()
    await fleet.work()
    victim, other, *_ = fleet.groups()
    await damage(client, keys, victim, how)
    await fleet.end(other, mixed)

    for _ in range(2):
        await fleet.supervise()

    [step] = await fleet.records("step")
    assert step["groups"] == other
    assert victim not in await fleet.members(keys.flying(RUN))
