"""Promise 3 when supervisors die after each of their scripts once. Again and again they die in `tests/faults/test_supervisor_kills.py`."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import QueueAudit, wait_until
from tests.integration.supervisor.fleet import RUN, Fleet, all_right, broken, mixed

SUPERVISOR_POINTS = (
    "launch",
    "launch:2",
    "account_groups",
    "account_groups:2",
    "reach_step",
    "give_up_groups",
    "drop_closed",
    "end_late_groups",
    "note_shortage",
    "announce_policies",
)
PROVOKED = ("drop_closed", "end_late_groups", "note_shortage")
"""Passed when something out of the ordinary is there to be done."""
QUICK_POINTS = ("launch",)
SUPERVISE = """
import asyncio, sys
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
settings = QueueSettings(redis_url=sys.argv[1], namespace=sys.argv[2])
asyncio.run(Supervisor(settings, name=sys.argv[3], period_s=0.2).run(asyncio.Event()))
"""

GONE = "gone.e0-0.0"
"""A group in the record of closed ones whose run is gone."""


async def provoke(client: AsyncClient, keys: Keys, run: str, point: str) -> None:
    """Gives supervisors a reason to pass a failpoint. Steps have a deadline for groups."""
    match point:
        case "drop_closed":
            await ask(client, "ZADD", keys.closed, 1, GONE)
        case "end_late_groups":
            # as if the deadline of the youngest group had passed
            for group in await ask(client, "ZRANGE", keys.flying(run), -1, -1):
                await ask(client, "HSET", keys.group(group.decode()), "late_at", 1)
        case "note_shortage":
            # what stood until now was another reason
            seconds, _ = await ask(client, "TIME")
            await ask(client, "HSET", keys.run(run), "short", "queue_full", "short.t", int(seconds) * 1000)


@contextmanager
def a_supervisor(settings: QueueSettings, name: str, *, failpoint: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor process; killed when left."""
    environ = {**os.environ, "ROLLSTREAM_FAILPOINT": failpoint}
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, settings.redis_url, settings.namespace, name], env=environ, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def work_once(fleet: Fleet) -> bool:
    """The group that is first ends, when there is one; of five prompts three are mixed, one is all right, one breaks."""
    await fleet.work()
    for group in fleet.groups()[:1]:
        number = int(group.split("-")[1].split(".")[0])
        await fleet.end(group, {3: all_right, 4: broken}.get(number % 5, mixed))
        return True
    return False


async def work_until(fleet: Fleet, condition: Callable[[], object | Awaitable[object]], description: str) -> None:
    """Workers go on until a condition holds."""

    async def holds() -> object:
        while await work_once(fleet) and not await _answer(condition):
            continue
        return await _answer(condition)

    await wait_until(holds, description, timeout_s=25)


async def _answer(condition: Callable[[], object | Awaitable[object]]) -> object:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer


async def reached(fleet: Fleet) -> int:
    return len(await fleet.records("step"))


async def check(fleet: Fleet, keys: Keys, steps: int, target: int) -> None:
    """Every step reached its target exactly once, no group was counted or launched twice, no redundant job is left."""
    found = await fleet.records("step")
    assert sorted(int(step["k"]) for step in found) == list(range(steps))
    joined = [group for step in found for group in step["groups"].split()]
    assert all(len(step["groups"].split()) == target for step in found)
    assert len(joined) == len(set(joined))
    for kind, name in (("group", "grp"), ("job", "job")):
        counts = Counter(record[name] for record in await fleet.records(kind))
        assert max(counts.values()) == 1, f"a {kind} has two records"
    groups = [record["grp"] for record in await fleet.records("group")]
    jobs = Counter(record["grp"] for record in await fleet.records("job"))
    assert all(jobs[group] == 2 for group in groups), "a group was accounted without its members"
    # two groups in flight of one prompt would be a double launch
    flying = [group.split(".")[1] for group in await fleet.members(keys.flying(RUN))]
    assert len(flying) == len(set(flying))
    marks = await fleet.hash(keys.prompt_marks(RUN))
    for prompt in flying:
        assert marks[prompt].startswith("flying")


@pytest.mark.one_server
@pytest.mark.parametrize(
    "failpoint", [pytest.param(name, marks=() if name in QUICK_POINTS else pytest.mark.slow) for name in SUPERVISOR_POINTS]
)
async def test_whatever_script_a_supervisor_dies_after_another_goes_on(
    failpoint: str, fleet: Fleet, settings: QueueSettings, keys: Keys
) -> None:
    await fleet.push_many(60)
    spec = StepSpec(target=2, n=2, over=2.0, max_redraws=0, group_deadline_s=3600)
    await fleet.open(0, spec)
    await fleet.open(1, spec)
    if failpoint in ("give_up_groups", "end_late_groups"):
        await fleet.supervise()
    if failpoint == "give_up_groups":
        # groups of an older incarnation are in flight
        await fleet.connect(nonce="second")
        await fleet.open(0, spec)
        await fleet.open(1, spec)
    await provoke(fleet.scripts.run_script.client, keys, RUN, failpoint)
    with a_supervisor(settings, "dies", failpoint=failpoint) as first:
        if failpoint in ("give_up_groups", *PROVOKED):
            await wait_until(lambda: first.poll() is not None, "the supervisor is dead", timeout_s=25)
        else:
            await work_until(fleet, lambda: first.poll() is not None, "the supervisor is dead")
        assert first.returncode == -signal.SIGKILL

    with a_supervisor(settings, "lives"):
        await work_until(fleet, lambda: _at_least(fleet, 2), "both steps are reached")

    await check(fleet, keys, steps=2, target=2)
    told = [record["grp"] for record in await QueueAudit(fleet.scripts.run_script.client, keys).entries(keys.dead)]
    assert told.count(GONE) == (failpoint == "drop_closed")


async def _at_least(fleet: Fleet, steps: int) -> bool:
    return await reached(fleet) >= steps
