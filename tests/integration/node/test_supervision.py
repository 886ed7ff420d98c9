"""Processes of a node: crashes, changes and drains, with small programs in place of workers (docs/adr/0027-node.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ops.child_processes import ChildProcesses
from ops.node.processes import Commands, ProcessPlan
from ops.node.restarts import RestartPolicy
from ops.node.supervision import CrashLoop, DrainShares, Supervision
from pipeline.messages import Stage
from pipeline.testing import wait_until

COMMANDS = Commands(node="n1", grace_s=60)
QUICK = RestartPolicy(crashes=2, first_pause_s=0.05, longest_pause_s=0.05)
POLITE = "trap 'echo stop NAME >> ORDER; exit 0' TERM; echo up; while :; do sleep 0.02; done"
BUSY = "n=0; trap 'n=$((n+1)); echo stop NAME $n >> ORDER; [ $n -ge 2 ] && exit 0' TERM; echo up; while :; do sleep 0.02; done"
DEAF = "trap '' TERM; echo up; while :; do sleep 0.02; done"
WHOLE_NODE = (
    COMMANDS.service(),
    COMMANDS.worker(Stage.INIT, 0, 1),
    COMMANDS.worker(Stage.RUN, 0, 1),
    COMMANDS.worker(Stage.RUN, 1, 1),
    COMMANDS.worker(Stage.EVAL, 0, 1),
    COMMANDS.supervisor(),
)


@dataclass(slots=True)
class Crew:
    """A node of shell programs."""

    folder: Path
    children: ChildProcesses
    supervision: Supervision = field(init=False)
    programs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.supervision = Supervision(self.children, QUICK, command_of=self.command_of)

    def command_of(self, plan: ProcessPlan) -> list[str]:
        """A polite program, unless the test has another one."""
        text = self.programs.get(plan.name, POLITE)
        return ["/bin/sh", "-c", text.replace("NAME", plan.name).replace("ORDER", str(self.folder / "order"))]

    @property
    def order(self) -> list[str]:
        """What the programs wrote down, in order."""
        path = self.folder / "order"
        return path.read_text().splitlines() if path.exists() else []

    async def are_up(self) -> None:
        """Each has set its traps."""

        def up() -> bool:
            return all("up" in each.child.last_lines() for each in self.supervision.processes)

        await wait_until(up, "all programs are up", timeout_s=30)


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    with ChildProcesses(tmp_path / "logs", {}) as children:
        yield Crew(tmp_path, children)


@contextlib.asynccontextmanager
async def kept(crew: Crew) -> AsyncIterator[asyncio.Task[None]]:
    """The supervision at work."""
    task = asyncio.create_task(crew.supervision.run(asyncio.Event()))
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, CrashLoop):
            await task


def running(crew: Crew) -> Callable[[], list[str]]:
    return lambda: [each.plan.name for each in crew.supervision.processes if each.runs]


async def test_a_drain_goes_by_stage_and_ends_the_service_last(crew: Crew) -> None:
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()

    killed = await crew.supervision.drain(60, asyncio.Event())

    assert killed == []
    assert crew.order[0] == "stop init-0"
    assert sorted(crew.order[1:4]) == ["stop run-0", "stop run-1", "stop supervisor"]
    assert crew.order[4:] == ["stop eval-0", "stop sandboxes"]
    assert crew.supervision.processes == ()


async def test_run_goes_on_while_its_lane_has_work(crew: Crew) -> None:
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()
    looks = 0

    async def lane_waits() -> bool:
        nonlocal looks
        looks += 1
        assert not any("run-0" in line for line in crew.order)
        return looks < 3

    await crew.supervision.drain(600, asyncio.Event(), lane_waits=lane_waits)

    assert looks == 3
    assert "stop run-0" in crew.order


async def test_a_lane_that_does_not_empty_costs_its_share_of_the_grace(crew: Crew) -> None:
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()

    async def lane_waits() -> bool:
        return True

    killed = await crew.supervision.drain(2.0, asyncio.Event(), lane_waits=lane_waits)

    assert killed == []
    assert crew.order[-1] == "stop sandboxes"


async def test_what_still_runs_at_its_share_hands_back(crew: Crew) -> None:
    crew.programs |= {"init-0": BUSY, "run-0": BUSY, "eval-0": BUSY}
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()

    killed = await crew.supervision.drain(60, asyncio.Event(), shares=DrainShares(0.01, 0.02, 0.03, 0.04))

    assert killed == []
    told_twice = [line for line in crew.order if line.endswith(" 2")]
    assert told_twice == ["stop init-0 2", "stop run-0 2", "stop eval-0 2"]
    assert crew.order[-1] == "stop sandboxes"


async def test_a_hurried_drain_hands_everything_back_and_still_ends_the_service_last(crew: Crew) -> None:
    """Of two signals that come at once the system delivers one: who was to hand back finished its work, for up to the grace."""
    crew.programs |= {"init-0": BUSY, "run-0": BUSY, "run-1": BUSY, "eval-0": BUSY}
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()
    hurry = asyncio.Event()
    hurry.set()

    killed = await crew.supervision.drain(600, hurry)

    assert killed == []
    assert sorted(line for line in crew.order if line.endswith(" 2")) == [
        f"stop {name} 2" for name in ("eval-0", "init-0", "run-0", "run-1")
    ]
    assert crew.order[-1] == "stop sandboxes"


async def test_what_is_deaf_is_killed_at_the_end_of_the_grace_and_named(crew: Crew) -> None:
    crew.programs |= {"run-1": DEAF}
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()

    killed = await crew.supervision.drain(3.0, asyncio.Event())

    assert killed == ["run-1"]
    assert "stop sandboxes" in crew.order
    assert crew.supervision.processes == ()


async def test_what_needs_no_order_ends_at_once_is_told_again_when_hurried_and_is_killed_when_deaf(crew: Crew) -> None:
    """Inference servers: none waits for another."""
    crew.programs |= {"llm-1": BUSY, "llm-2": DEAF}
    crew.supervision.start(*(ProcessPlan(f"llm-{index}", ()) for index in range(3)))
    await crew.are_up()
    hurry = asyncio.Event()
    hurry.set()

    killed = await crew.supervision.end(3.0, hurry)

    assert killed == ["llm-2"]
    assert {"stop llm-0", "stop llm-1 1", "stop llm-1 2"} <= {*crew.order}
    assert crew.supervision.processes == ()


async def test_a_crash_is_mended_and_remembered_with_its_last_words(crew: Crew) -> None:
    once = crew.folder / "once"
    crew.programs["run-0"] = f"[ -e {once} ] || {{ touch {once}; echo redis://:hunter2@host is gone; exit 7; }}; {POLITE}"
    crew.supervision.start(*WHOLE_NODE)
    async with kept(crew):
        await wait_until(lambda: once.exists() and "run-0" in running(crew)() and crew.supervision.crash_count, "it runs again")

    crash = crew.supervision.last_crash
    assert crash is not None
    assert (crash.name, crash.code, crash.end) == ("run-0", 7, "exit code 7")
    assert crash.tail == "redis://:***@host is gone"


async def test_past_the_cap_the_node_is_told_which_process_and_why(crew: Crew) -> None:
    crew.programs["eval-0"] = "echo no such thing; exit 1"
    crew.supervision.start(*WHOLE_NODE)
    async with kept(crew) as task:
        with pytest.raises(CrashLoop, match=r"eval-0 crashed 3 times in a row: exit code 1") as loop:
            async with asyncio.timeout(30):
                await task

    assert loop.value.crash.tail == "no such thing"
    assert await crew.supervision.drain(60, asyncio.Event()) == []  # the others end in order


async def test_what_was_retired_is_not_started_again_and_its_index_is_free_when_it_is_gone(crew: Crew) -> None:
    crew.programs["run-0"] = BUSY
    crew.supervision.start(*WHOLE_NODE)
    await crew.are_up()
    async with kept(crew):
        crew.supervision.retire("run-0", "run-1")

        assert crew.supervision.slots_of(Stage.RUN) == {}
        await wait_until(lambda: crew.supervision.indexes_of(Stage.RUN) == {0}, "the polite one is gone, the busy one drains")
        (draining,) = [each for each in crew.supervision.processes if each.plan.stage is Stage.RUN]
        draining.child.process.terminate()
        await wait_until(lambda: crew.supervision.indexes_of(Stage.RUN) == set(), "it is gone")

    assert crew.supervision.crash_count == 0
