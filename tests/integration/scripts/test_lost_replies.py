"""A reply can be lost: whoever asked asks again, and what was asked happens once (promises 1 and 2).

Each test makes the same call twice, as `ScriptRunner` does when a connection breaks between the effect and its reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pipeline.errors import BrokerUnreachable
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import JournalTurn, Scripts, sha
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, a_group, a_unit, held_of

from .conftest import Connect, Run

Answer = TypeVar("Answer")


async def test_connecting_twice_with_one_nonce_is_one_incarnation(connect: Connect) -> None:
    first = await connect(nonce="n1")
    again = await connect(nonce="n1")
    later = await connect(nonce="n2")

    assert (first.incarnation, again.incarnation, later.incarnation) == (1, 1, 2)


async def test_a_unit_is_accepted_once(run: Run) -> None:
    assert await run.accept(a_group(members=3), a_unit(prompt="single")) == [True, True]
    assert await run.accept(a_group(members=3), a_unit(prompt="single")) == [False, False]

    assert await run.states() == {"ready": 4}


async def test_a_unit_named_twice_in_one_call_is_accepted_once(run: Run) -> None:
    assert await run.accept(a_unit(), a_unit()) == [True, False]


async def test_beginning_again_with_the_same_nonce_is_the_same_attempt(run: Run) -> None:
    """The claim nonce tells a repeated call from a second worker: without it a lost reply would cost an attempt, or the job would be
    `held` by nobody."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    claims = await worker.deliver()

    first = await worker.begin(*claims)
    again = await worker.begin(*claims)

    assert again == first
    assert (again[0].state, again[0].attempt) == ("ok", 1)


async def test_a_hand_off_is_done_once_and_answers_again(run: Run) -> None:
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    held = await worker.take()

    assert await worker.hand_off(*held) == ["ok"]
    assert await worker.hand_off(*held) == ["again"]

    assert [entry.stream for entry in await run.audit.stage_entries()] == ["s:run"]


async def test_a_hand_off_reply_delayed_past_the_next_hand_off_is_still_again(run: Run) -> None:
    """INIT handed the job over and its reply got stuck in the network. RUN begins, works and hands over too. Only then INIT's connection
    breaks and it asks again: its hand-off stood, so it must not be told that another attempt has the job (it would tear down what RUN
    used), and nothing may happen twice. One remembered hand-off a job would be overwritten by RUN's; one a stage is not."""
    await run.accept(a_unit())
    init, agent = run.worker(Stage.INIT), run.worker(Stage.RUN)
    first = await init.take()
    await init.hand_off(*first)
    second = await agent.take()
    assert await agent.hand_off(*second) == ["ok"]

    assert await init.hand_off(*first) == ["again"]

    assert [entry.stream for entry in await run.audit.stage_entries()] == ["s:eval"]
    assert await agent.hand_off(*second) == ["again"]


async def test_a_hand_off_reply_stuck_on_the_wire_past_the_next_hand_off(
    run: Run, settings: QueueSettings, redis_server: PrivateServer
) -> None:
    """The same over a real wire: the proxy holds INIT's reply while RUN works, then breaks the connection; the runner asks again by
    itself."""
    await run.accept(a_unit())
    with LossyProxy(redis_server.socket) as proxy:
        slow_client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        slow = run.worker(Stage.INIT)
        slow.scripts = Scripts(slow_client, run.scripts.keys)
        held = await slow.take()
        trap = proxy.hold_reply(containing=sha("hand_off").encode())
        handing = asyncio.create_task(slow.hand_off(*held))
        await trap.sprung()
        agent = run.worker(Stage.RUN)
        await agent.hand_off(*await agent.take())

        proxy.begin_outage()
        proxy.heal()

        assert await handing == ["again"]
        await slow_client.aclose()
    assert [entry.stream for entry in await run.audit.stage_entries()] == ["s:eval"]


async def test_a_job_is_settled_once_and_answers_again(run: Run) -> None:
    await run.accept(a_group(members=2))
    held = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)

    assert await worker.settle(*held) == ["ok", "ok"]
    assert await worker.settle(*held) == ["again", "again"]
    assert await worker.settle(held[0], held[0]) == ["again", "again"]

    assert len(await run.audit.results("run1")) == 2


async def test_giving_up_twice_counts_once(run: Run) -> None:
    """The second call meets a job that is on its way again. It answers `fenced`: true, this attempt is over, and there is nothing to keep
    of it."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    held = await worker.take()

    assert await worker.give_up(*held) == ["retry"]
    assert await worker.give_up(*held) == ["fenced"]

    assert (await run.audit.job(held[0].job))["failed"] == "1"


async def test_a_turn_is_journalled_once(run: Run, client: AsyncClient) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)
    turns = [JournalTurn(held.job, held.attempt, index, b"turn %d" % index) for index in range(3)]

    for turn in (turns[0], turns[0], turns[1], turns[1], turns[0], turns[2]):
        assert await run.scripts.journal([turn], ttl_ms=60_000) == ["1"]

    kept = await ask(client, "LRANGE", run.audit.keys.body(held.job, held.attempt, "turns"), 0, -1)
    assert kept == [b"turn 0", b"turn 1", b"turn 2"]


async def test_a_gap_in_the_journal_is_not_called_kept(run: Run, client: AsyncClient) -> None:
    """A journal that lost its beginning cannot be salvaged. Turn 1 without turn 0 was dropped without a word and answered `kept`: the
    agent went on in the belief that its turns were safe. The attempt is told that it is lost instead."""
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.RUN)

    assert await run.scripts.journal([JournalTurn(held.job, held.attempt, 1, b"turn 1")], ttl_ms=60_000) == ["0"]

    assert await ask(client, "EXISTS", run.audit.keys.body(held.job, held.attempt, "turns")) == 0


async def test_recovering_twice_puts_back_once(run: Run) -> None:
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    held = await worker.take()

    assert await worker.recover("idle", *held) == ["lost"]
    assert await worker.recover("idle", *held) in (["fresh"], ["stale"])

    assert (await run.audit.job(held[0].job))["lost"] == "1"


async def test_promoting_twice_makes_one_entry(run: Run) -> None:
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    await worker.give_up(*await worker.take(), backoff_ms=1)

    promoted = 0
    while promoted == 0:
        promoted, _ = await run.scripts.promote()
    assert await run.scripts.promote() == (0, None)

    assert await run.states() == {"ready": 1}


async def test_cancelling_twice_settles_once(run: Run) -> None:
    group = a_group(members=2)
    await run.accept(group)

    assert (await run.scripts.cancel("group", [group.id], "redundant"))["settled"] == 2
    assert await run.scripts.cancel("group", [group.id], "redundant") == {"settled": 0, "running": 0, "done": 2, "unknown": 0}

    assert [row["out"] for row in await run.audit.results("run1")] == ["cancelled", "cancelled"]


async def test_an_ack_repeated_removes_nothing_else(run: Run) -> None:
    await run.accept(a_unit(), a_unit(prompt="other"))
    held = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(*held)
    first = (await run.audit.results("run1"))[0]

    assert await run.scripts.ack("run1", run.incarnation, [(first["entry"], "job", first["job"])]) == 1
    assert await run.scripts.ack("run1", run.incarnation, [(first["entry"], "job", first["job"])]) == 0

    assert len(await run.audit.results("run1")) == 1
    run.units = [unit for unit in run.units if unit.id != first["job"]]


async def test_replies_cut_at_random_change_nothing(run: Run, settings: QueueSettings, redis_server: PrivateServer) -> None:
    """A fifth of all replies is cut on the wire; the jobs go through all stages, each once."""
    groups = [a_group(prompt=f"p{number}", members=2) for number in range(5)]
    with LossyProxy(redis_server.socket, seed=3, cut_share=0.2) as proxy:
        lossy_client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        lossy = replace(run, scripts=Scripts(lossy_client, run.scripts.keys))
        for group in groups:
            await until_answered(partial(lossy.accept, group))
        for attempt, stage in enumerate(Stage, start=1):
            worker, wire = run.worker(stage), lossy.worker(stage)
            for claim in await worker.deliver():
                (begun,) = await until_answered(partial(wire.begin, claim))
                assert (begun.state, begun.attempt) == ("ok", attempt)
                end = wire.settle if stage is Stage.EVAL else wire.hand_off
                assert await until_answered(partial(end, held_of(begun))) in (["ok"], ["again"])
        await lossy_client.aclose()
        assert proxy.replies_cut > 5
    assert await run.audit.all_ended("run1", groups) == []
    run.units = groups


async def until_answered(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Calls until Redis answers, as consumers do."""
    while True:
        try:
            return await call()
        except BrokerUnreachable:
            continue
