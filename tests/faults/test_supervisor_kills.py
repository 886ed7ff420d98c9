"""Promise 3 for an hour's worth of steps in a minute: two supervisors, one killed every second, and each dies at a failpoint when it can.

Everything is real: a server, worker processes, supervisor processes, a trainer that takes steps and acks none of them, so that all that
happened stands in Redis in the end and can be counted. Half-way the trainer is gone and another takes the run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ops.bench.dapo_task import TASK
from ops.child_processes import Child, ChildProcesses
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Unit
from pipeline.settings import QueueSettings
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.loop import GROUP
from pipeline.testing import QueueAudit, wait_until
from tests.integration.supervisor.test_kills import PROVOKED, SUPERVISE, SUPERVISOR_POINTS, provoke
from trainer_client import Run, StepRequest, connect

RUN = "reigns"
STEPS, HALF = 200, 100
TARGET, MEMBERS = 2, 2
SLOTS = 24
UNIT_S = 0.3
"""Of a rollout's length: 24 slots do the 2,300 rollouts of 200 steps in about 45 s."""
KILL_EVERY_S = 1.0
FEWEST_KILLS = 12
"""Beside those at failpoints, on a machine so busy that supervisors take seconds to begin."""
AT_TAKEOVER = "give_up_groups"
"""Passed when another trainer takes the run while groups are in flight."""
REQUEST = StepRequest(
    task=TASK,
    groups=TARGET,
    n=MEMBERS,
    over=2.0,
    ahead=1,
    group_deadline_s=3600.0,
    options={"seed": 1, "half_slow": False, "unit_s": UNIT_S},
)


class Succession:
    """Workers that work, and two supervisors. Each second one of them is killed, in turn, and another takes its place, armed with the next
    failpoint.

    On a machine that is so busy that a process needs more than a second to begin, the next one is killed when it has begun.
    """

    def __init__(self, client: AsyncClient, children: ChildProcesses, settings: QueueSettings, folder: Path) -> None:
        self._client = client
        self._keys = Keys.of_shard(settings.namespace, 0)
        self._children = children
        self._settings = settings
        self._folder = folder
        self._points = [point for point in SUPERVISOR_POINTS if point != AT_TAKEOVER]
        self._alive: list[Child] = []
        self._started = 0
        self.killed = 0
        """By us."""
        accounts = folder / "accounts"
        accounts.mkdir()
        self._workers = children.start(
            "workers", "ops.bench.dapo_host", "workers", str(accounts), str(folder / "scratch"), f"{settings.namespace}:{SLOTS}"
        )

    def fired(self, point: str) -> bool:
        """Whether a supervisor died there."""
        return self._once(point).exists()

    def start(self, point: str = "") -> None:
        """Two supervisors, armed with this failpoint or the next ones."""
        self._alive = [self._successor(point) for _ in range(2)]

    @contextmanager
    def interregnum(self) -> Iterator[None]:
        """No supervisor is left, and the workers stand still with what they have."""
        for child in self._alive:
            self._kill(child)
        self._workers.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._workers.process.send_signal(signal.SIGCONT)

    async def reign(self, over: asyncio.Event) -> None:
        """Kills one every second until it is over. Those that died at a failpoint are replaced, too."""
        while not over.is_set():
            try:
                async with asyncio.timeout(KILL_EVERY_S):
                    await over.wait()
            except TimeoutError:
                oldest, other = self._alive
                await wait_until(partial(self._has_begun, other), f"{other.name} supervises", timeout_s=30)
                self.killed += self._kill(oldest)
                for point in PROVOKED:
                    if not self.fired(point):
                        await provoke(self._client, self._keys, RUN, point)
                survivor = other if other.exit_code is None else self._successor()
                self._alive = [survivor, self._successor()]

    async def _has_begun(self, child: Child) -> bool:
        """Whether it reads events, or has died of them already."""
        stream = self._keys.reward
        has_group = await ask(self._client, "EXISTS", stream) and await ask(self._client, "XINFO GROUPS", stream)
        readers = await ask(self._client, "XINFO CONSUMERS", stream, GROUP) if has_group else ()
        return child.exit_code is not None or child.name.encode() in {reader["name"] for reader in readers}

    def _successor(self, point: str = "") -> Child:
        left = [name for name in self._points if not self.fired(name)]
        point = point or (left[self._started % len(left)] if left else "")
        self._started += 1
        name = f"supervisor-{self._started}"
        child = self._children.start_command(
            name,
            [sys.executable, "-c", SUPERVISE, self._settings.redis_url, self._settings.namespace, name],
            environment={FAILPOINT: point, FAILPOINT_ONCE: str(self._once(point))},
        )
        child.asked_to_stop = True
        return child

    def _once(self, point: str) -> Path:
        return self._folder / f"once-{point.replace(':', '-')}"

    def _kill(self, child: Child) -> bool:
        """Whether it was alive."""
        alive = child.exit_code is None
        child.process.kill()
        assert child.process.wait() == -signal.SIGKILL, f"{child.name} ended by itself: {child.log.read_text(encoding='utf-8')}"
        return alive


@pytest.fixture
async def succession(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Succession]:
    """Supervisors to come."""
    with ChildProcesses(tmp_path / "logs", {"ROLLSTREAM_REDIS_URL": settings.redis_url}) as children:
        yield Succession(client, children, settings, tmp_path)


async def train(run: Run, until: int) -> dict[int, tuple[str, ...]]:
    """The groups of each step up to one; more steps are open then, and their groups in flight."""
    run.feed([{"number": number} for number in range(4000)], reserve=64)
    taken: dict[int, tuple[str, ...]] = {}
    async for step in run.steps(REQUEST, count=STEPS, timeout_s=60):
        taken[step.index] = tuple(group.id for group in step.groups)
        if step.index == until:
            break
    return taken


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.timeout(300)
async def test_200_steps_under_supervisors_that_are_killed_every_second(
    succession: Succession, settings: QueueSettings, client: AsyncClient, keys: Keys
) -> None:
    over = asyncio.Event()
    succession.start()
    async with asyncio.TaskGroup() as tasks:
        reign = tasks.create_task(succession.reign(over), name="reign")
        async with connect(settings, run=RUN) as run:
            first = await train(run, HALF)
            over.set()
            await reign
            over.clear()
            with succession.interregnum():
                async with connect(settings, run=RUN):
                    succession.start(AT_TAKEOVER)
                    await wait_until(lambda: succession.fired(AT_TAKEOVER), "one died as it gave up older groups", timeout_s=20)
        tasks.create_task(succession.reign(over), name="reign")
        async with connect(settings, run=RUN) as run:
            second = await train(run, STEPS)
            over.set()
    audit = QueueAudit(client, keys)

    await wait_until(lambda: _nothing_flies(client, keys), "all that was launched has ended", timeout_s=60)

    assert succession.killed >= FEWEST_KILLS
    assert [point for point in SUPERVISOR_POINTS if not succession.fired(point)] == []
    assert {index: groups for index, groups in second.items() if index <= HALF} == first, "a step that was taken comes again as it was"
    await check_steps(audit, second)
    await check_groups(audit)


async def check_steps(audit: QueueAudit, taken: dict[int, tuple[str, ...]]) -> None:
    """Every step reached its target exactly once."""
    records = [record for record in await audit.results(RUN) if record["kind"] == "step"]

    assert [int(record["k"]) for record in records] == list(range(1, STEPS + 1))
    assert {int(record["k"]): tuple(record["groups"].split()) for record in records} == taken
    joined = [group for groups in taken.values() for group in groups]
    assert len(set(joined)) == len(joined) == STEPS * TARGET


async def check_groups(audit: QueueAudit) -> None:
    """No group was counted or launched twice, and nothing redundant is left running."""
    records = await audit.results(RUN)
    groups = {record["grp"]: record for record in records if record["kind"] == "group"}
    jobs = [record for record in records if record["kind"] == "job"]
    found = await audit.hash(audit.keys.run(RUN))

    assert len(groups) == sum(record["kind"] == "group" for record in records), "a group was counted twice"
    parked = await _parked(audit)
    assert set(groups) == {job["grp"] for job in jobs} - parked
    # a trainer lets go of groups that were given up while no step was open: they have no record, but were counted
    launched, counted = int(found["groups.launched"]), sum(int(found.get(f"groups.{verdict}", "0")) for verdict in Verdict)
    assert counted + len(parked) == launched
    ended = sum(int(number) for name, number in found.items() if name.startswith("out."))
    assert launched * MEMBERS == int(found["accepted"]) == ended
    done_with = Counter(record["prompt"] for record in groups.values() if record["verdict"] in ("informative", "filtered"))
    assert max(done_with.values()) == 1, "a prompt was in flight twice"
    # each stage begins a job once: with workers that live, a third beginning says that somebody launched it again
    assert max(int(job["att"]) for job in jobs) <= 3
    assert [job["out"] for job in jobs if job["out"] not in ("ok", "cancelled")] == []
    units = [Unit(group, MEMBERS, "", 0, "", b"") for group in {job["grp"] for job in jobs}]
    assert await audit.all_ended(RUN, units) == []


async def _parked(audit: QueueAudit) -> set[str]:
    """Informative groups that wait for a step: they have no record yet."""
    return {group.decode() for group in await ask(audit.client, "ZRANGE", audit.keys.parked(RUN), 0, -1)}


async def _nothing_flies(client: AsyncClient, keys: Keys) -> bool:
    return not await ask(client, "EXISTS", keys.closed, keys.flying(RUN), keys.open_units(RUN))
