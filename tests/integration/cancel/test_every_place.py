"""Promise 4 in every place a job can be: it ends, the record says why, and nothing of it is left: no sandbox, process, model call,
assignment or entry.

The mark and the message are written by the first call of a cancel; leases are a minute long here, so nothing but the message tells.
"""

from __future__ import annotations

import asyncio

import pytest

from pipeline import codec
from pipeline.messages import CancelReason, Prompt, Stage
from pipeline.redis_client import ask
from pipeline.scripts import Unit, sha
from pipeline.testing import LossyProxy, PrivateServer, a_template, wait_until
from tests.integration.cancel.workplace import Acting, Workplace
from tests.integration.stages.fleet import RUN, TASK

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(60)]


async def test_in_the_queue_of_its_run(workplace: Workplace) -> None:
    template = a_template(task=TASK)
    unit = Unit(f"{RUN}.one", 0, "one", 0, "1.0", codec.encode(Prompt(id="one", data={})))
    await workplace.scripts.accept(RUN, 1, template, "t", codec.encode(template), [unit], max_waiting=10, window=0)
    workplace.units.append(unit)
    assert (await workplace.audit.job(unit.id))["st"] == "waiting"

    assert (await workplace.scripts.cancel("job", [unit.id], "overload"))["settled"] == 1

    await workplace.cancelled(unit.id, "overload")
    await workplace.nothing_is_left()


async def test_before_anybody_reads_its_entry(workplace: Workplace) -> None:
    (job,) = await workplace.add("one")
    assert (await workplace.audit.job(job))["st"] == "ready"

    assert (await workplace.scripts.cancel("job", [job], "stale"))["settled"] == 1

    await workplace.cancelled(job, "stale")
    await workplace.serve(Stage.INIT, handler=Acting())
    await workplace.nothing_is_left()


async def test_between_the_delivery_of_its_entry_and_its_begin(workplace: Workplace, redis_server: PrivateServer) -> None:
    """The worker has been delivered it and does not know yet: what it begins is gone by then."""
    with LossyProxy(redis_server.socket) as proxy:
        trap = proxy.hold_reply(containing=b"XREADGROUP")
        await workplace.serve(Stage.INIT, handler=Acting(), url=proxy.url)
        (job,) = await workplace.add("one")
        await trap.sprung()
        assert [entry.pending_of for entry in await workplace.audit.stage_entries()] == ["init-n1-0"]

        assert (await workplace.scripts.cancel("job", [job], "redundant"))["settled"] == 1
        trap.release()

        await workplace.cancelled(job, "redundant")
        await workplace.nothing_is_left()
        assert workplace.sandboxes_of(job) == 0
        await workplace.leave_all()


async def test_while_init_fills_its_sandbox(workplace: Workplace) -> None:
    handler = Acting(preparing=asyncio.Event())
    await workplace.serve(Stage.INIT, handler=handler)
    (job,) = await workplace.add("one")
    await wait_until(lambda: workplace.sandboxes_of(job), "its sandbox stands")

    await workplace.scripts.cancel("job", [job], "redundant")

    await workplace.cancelled(job, "redundant")
    await workplace.nothing_is_left()


async def test_while_a_retry_of_it_waits_for_its_time(workplace: Workplace) -> None:
    await workplace.serve(Stage.INIT, handler=Acting(init_fails=True))
    (job,) = await workplace.add("one")
    await workplace.in_state(job, "init", "delayed")

    assert (await workplace.scripts.cancel("job", [job], "user"))["settled"] == 1

    await workplace.cancelled(job, "user")
    assert await ask(workplace.client, "ZCARD", workplace.keys.key("z:delay")) == 0
    await workplace.nothing_is_left()


@pytest.mark.parametrize("kind", ["job", "run"])
async def test_in_the_lane_of_its_node_with_a_sandbox_that_is_ready(workplace: Workplace, kind: str) -> None:
    """Nobody holds it: the sandbox stood there until the next sweep of the node, up to half a minute later."""
    async with workplace.model:
        handler = Acting()
        await workplace.serve(Stage.INIT, Stage.RUN, handler=handler, slots=1)
        first, second = await workplace.add("one", "two")
        await workplace.in_state(first, "run", "running")
        await workplace.in_state(second, "run", "ready")
        assert workplace.sandboxes_of(second) == 1

        if kind == "job":
            await workplace.scripts.cancel("job", [second], "redundant")
            await workplace.cancelled(second, "redundant")
            await wait_until(lambda: not workplace.sandboxes_of(second), "its sandbox is gone", timeout_s=3)
            assert workplace.sandboxes_of(first) == 1
            await workplace.scripts.cancel("job", [first], "redundant")
        else:
            await workplace.scripts.cancel("run", [RUN], "redundant")

        await workplace.results(2)
        await workplace.nothing_is_left()


async def test_while_it_waits_for_a_model_server(workplace: Workplace) -> None:
    """There is none: it asks the pool again and again."""
    await workplace.serve(Stage.INIT, Stage.RUN, handler=Acting(has_sandbox=False))
    (job,) = await workplace.add("one")
    await workplace.in_state(job, "run", "running")

    await workplace.scripts.cancel("job", [job], "overload")

    await workplace.cancelled(job, "overload")
    await workplace.nothing_is_left()


@pytest.mark.parametrize("reason", list(CancelReason))
async def test_in_a_model_call(workplace: Workplace, reason: CancelReason) -> None:
    """The request is aborted at the server by its id, its connection is closed, its server given back, and all five reasons are told."""
    workplace.model = workplace.a_model(seconds_a_token=60.0)
    async with workplace.model:
        await workplace.attach()
        await workplace.serve(Stage.INIT, Stage.RUN, handler=Acting())
        (job,) = await workplace.add("one")
        await workplace.calls_run()
        assert await workplace.load() == 1

        await workplace.scripts.cancel("job", [job], reason.value)

        await workplace.cancelled(job, reason.value)
        assert workplace.model.engine.request_ids() == []
        assert workplace.model.engine.finished["abort"] == 1, "by its id, not only by its connection"
        await workplace.nothing_is_left()
        # a keeper's look asks four things at once, over connections of its own
        await wait_until(lambda: len(workplace.model.connections) <= 4, "the connection of the call is closed or idle")


@pytest.mark.parametrize("way", ["kernel", "shell", "exec"])
async def test_in_a_tool_call(workplace: Workplace, way: str) -> None:
    """Python or bash in the sandbox, with children: the whole tree is killed, and the sandbox is gone when the record says so."""
    async with workplace.model:
        await workplace.attach()
        await workplace.serve(Stage.INIT, Stage.RUN, handler=Acting(way=way))  # type: ignore[arg-type]
        (job,) = await workplace.add("one")
        await workplace.tool_runs()

        await workplace.scripts.cancel("job", [job], "user")

        await workplace.cancelled(job, "user")
        await workplace.nothing_is_left()


async def test_in_its_grader(workplace: Workplace) -> None:
    """A process of its own, which works for nobody any more."""
    workplace.model = workplace.a_model(tool_rate=0.0)
    async with workplace.model:
        await workplace.attach()
        handler = Acting(has_sandbox=False, grades_by_process=True)
        await workplace.serve(handler=handler)
        (job,) = await workplace.add("one")
        await wait_until(lambda: handler.grader.working, "the grader works", timeout_s=20)
        (pid,) = handler.grader.working

        await workplace.scripts.cancel("job", [job], "stale")

        await workplace.cancelled(job, "stale")
        await wait_until(lambda: pid not in handler.grader.pids, "the grader process is gone")
        await workplace.nothing_is_left()


@pytest.mark.parametrize("first", ["settle", "cancel"])
async def test_when_its_grade_is_on_its_way(workplace: Workplace, redis_server: PrivateServer, first: str) -> None:
    """Whoever is first in Redis has it, and there is one record either way."""
    workplace.model = workplace.a_model(tool_rate=0.0)
    async with workplace.model:
        await workplace.attach()
        handler = Acting(has_sandbox=False)
        with LossyProxy(redis_server.socket) as proxy:
            await workplace.serve(Stage.INIT, Stage.RUN, handler=handler)
            (job,) = await workplace.add("one")
            await workplace.in_state(job, "eval", "ready")
            trap = proxy.hold_reply(containing=(sha("settle") if first == "settle" else sha("begin")).encode())
            await workplace.serve(Stage.EVAL, handler=handler, url=proxy.url)
            await trap.sprung()
            if first == "cancel":
                # the message is lost on this worker, as if it came while the grade was sent
                await ask(workplace.client, "HSET", workplace.keys.job(job), "cx", "user")
            else:
                assert await workplace.scripts.cancel("job", [job], "user") == {"settled": 0, "running": 0, "done": 1, "unknown": 0}
            trap.release()

            record = await workplace.result()

            assert (record["out"], record["why"]) == (("ok", "") if first == "settle" else ("cancelled", "user"))
            await workplace.nothing_is_left()
            await workplace.leave_all()


async def test_a_group_is_cancelled_with_one_message_wherever_its_members_are(workplace: Workplace) -> None:
    """One runs, one waits in the lane, others in the stream and in the queue: each ends in its own way."""
    workplace.model = workplace.a_model(seconds_a_token=60.0)
    async with workplace.model:
        await workplace.attach()
        template = a_template(task=TASK)
        group = Unit(f"{RUN}.g.0", 6, "g", 0, "1.0", codec.encode(Prompt(id="g", data={})))
        await workplace.scripts.accept(RUN, 1, template, "t", codec.encode(template), [group], max_waiting=10, window=4)
        workplace.units.append(group)
        await workplace.serve(Stage.RUN, handler=Acting(), slots=1)
        (init,) = await workplace.serve(Stage.INIT, handler=Acting(), slots=1)
        await workplace.calls_run()
        await workplace.in_state(f"{group.id}.1", "run", "ready")
        init.stop.set()

        counts = await workplace.scripts.cancel("group", [group.id], "redundant")

        assert counts["settled"] + counts["running"] == 6
        records = await workplace.results(6)
        assert {(record["out"], record["why"]) for record in records.values()} == {("cancelled", "redundant")}
        assert len(await workplace.audit.entries(workplace.keys.cancel)) == 1
        await workplace.nothing_is_left()
