"""Groups that are open past their deadline: who ends, who stands, and how the group is judged then (ADR 6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import ManualWorker, wait_until
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

SHORT_S = 0.05
SPEC = StepSpec(target=1, n=4, over=1.0, group_deadline_s=SHORT_S, min_members=2, max_redraws=1)


async def is_late(fleet: Fleet, group: str) -> bool:
    """Whether the deadline of a group is over, by the clock of Redis."""
    seconds, micros = await ask(fleet.scripts.run_script.client, "TIME")
    late_at_ms = int((await fleet.hash(fleet.scripts.keys.group(group)))["late_at"])
    return bool(late_at_ms < int(seconds) * 1000 + int(micros) // 1000)


async def launched(fleet: Fleet, spec: StepSpec = SPEC) -> str:
    """One group whose members are in EVAL."""
    await fleet.push("e0-0")
    await fleet.open(1, spec)
    await fleet.supervise()
    await fleet.work()
    return f"{RUN}.e0-0.0"


async def test_a_late_group_with_enough_members_closes_short(fleet: Fleet, scripts: Scripts) -> None:
    group = await launched(fleet)
    await fleet.end(group, mixed, [0, 1])
    held = [fleet.held.pop(f"{group}.{member}") for member in (2, 3)]

    await wait_until(lambda: is_late(fleet, group), "the deadline is over")
    await fleet.supervise()
    assert await fleet.records("group") == []  # its workers are told, and it waits for their word
    assert await ManualWorker(scripts, Stage.EVAL).settle(*held) == ["cx:deadline", "cx:deadline"]
    await fleet.supervise()

    [record] = await fleet.records("group")
    assert (record["verdict"], record["valid"], record["rews"]) == ("informative", "2", "0,1,,")
    assert sorted(record["out"] for record in await fleet.records("job")) == ["expired", "expired", "ok", "ok"]
    assert len(await fleet.records("step")) == 1


async def test_a_group_is_not_late_for_time_in_which_its_engines_were_away(fleet: Fleet, scripts: Scripts) -> None:
    """Neither while they are away, nor for so long afterwards; then as any other."""
    trainer = TrainerScripts(scripts.run_script.client, scripts.keys)
    group = await launched(fleet, replace(SPEC, group_deadline_s=0.3))
    await trainer.stand_still(RUN, 1, "h1", lease_s=60)
    await wait_until(lambda: is_late(fleet, group), "its first date is over")
    await fleet.supervise()
    assert "late" not in await fleet.hash(scripts.keys.group(group))

    await trainer.stand_still(RUN, 1, "h1", lease_s=0)
    await ask(scripts.run_script.client, "HSET", scripts.keys.run(RUN), "still.ms", 3_600_000)  # as if it had been an hour
    await fleet.supervise()
    assert "late" not in await fleet.hash(scripts.keys.group(group))

    await ask(scripts.run_script.client, "HSET", scripts.keys.run(RUN), "still.ms", 0)
    await fleet.supervise()
    assert "late" in await fleet.hash(scripts.keys.group(group))


async def test_a_late_group_with_too_few_is_dropped_and_counts_as_a_draw(fleet: Fleet, keys: Keys) -> None:
    """Nobody ever began three of its members: they end at once, and the group with them."""
    await fleet.push("e0-0")
    await fleet.open(1, SPEC)
    await fleet.supervise()
    first, second = f"{RUN}.e0-0.0", f"{RUN}.e0-0.1"

    await wait_until(lambda: is_late(fleet, first), "the deadline is over")
    await fleet.supervise()
    await fleet.supervise()
    await wait_until(lambda: is_late(fleet, second), "the deadline of the next draw is over")
    await fleet.supervise()
    await fleet.supervise()

    verdicts = [(record["grp"], record["verdict"], record["why"]) for record in await fleet.records("group")]
    assert verdicts == [
        (first, "dropped", "0 of 4 valid, 2 needed: expired 4"),
        (second, "dead", "0 of 4 valid, 2 needed: expired 4"),
    ]
    assert await fleet.mark("e0-0") == "dead 1 1 1 1"
    assert (await fleet.hash(keys.run(RUN)))["groups.late"] == "2"


async def test_workers_are_told_once(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    group = await launched(fleet)
    await wait_until(lambda: is_late(fleet, group), "the deadline is over")
    for _ in range(3):
        await fleet.supervise()

    messages = await ask(client, "XRANGE", keys.cancel, "-", "+")
    assert [(fields[b"kind"], fields[b"why"], fields[b"ids"]) for _, fields in messages] == [(b"group", b"deadline", group.encode())]


async def test_no_deadline_is_judged_while_the_janitor_keeps_quiet(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    """Redis was away for an hour: all groups are past their deadline, and none of them for a fault of its own."""
    group = await launched(fleet)
    await wait_until(lambda: is_late(fleet, group), "the deadline is over")
    now_ms = int((await ask(client, "TIME"))[0]) * 1000
    await client.hset(keys.key("janitor"), "quiet_until", str(now_ms + 60_000))
    await fleet.supervise()

    assert "late" not in await fleet.hash(keys.group(group))
    await client.hset(keys.key("janitor"), "quiet_until", "0")
    await fleet.supervise()
    assert "late" in await fleet.hash(keys.group(group))


async def test_a_group_in_time_and_one_without_a_deadline_are_left_alone(fleet: Fleet, keys: Keys) -> None:
    group = await launched(fleet, replace(SPEC, group_deadline_s=3600.0))
    await fleet.supervise()

    [flying] = await fleet.reader.flying(RUN)
    assert flying.late_at_ms > flying.launched_ms + 3_599_000
    assert "late" not in await fleet.hash(keys.group(group))


async def test_groups_have_no_deadline_unless_the_step_says_so(fleet: Fleet, keys: Keys) -> None:
    group = await launched(fleet, replace(SPEC, group_deadline_s=0.0))

    assert "late_at" not in await fleet.hash(keys.group(group))
    assert not (await fleet.view()).has_deadlines


async def test_two_supervisors_end_a_late_group_once(fleet: Fleet, client: AsyncClient, keys: Keys) -> None:
    group = await launched(fleet)
    await wait_until(lambda: is_late(fleet, group), "the deadline is over")
    view = await fleet.view()

    found = await asyncio.gather(*(fleet.steps.end_late_groups(view.basis, [group]) for _ in range(4)))

    assert sorted(map(len, found)) == [0, 0, 0, 1]
    assert len(await ask(client, "XRANGE", keys.cancel, "-", "+")) == 1
