"""Keeps the processes of a node: starts again what crashed, changes how many there are, ends them in order.

    start ──▶ up ──crash──▶ waiting ──pause──▶ up
               └──retired──▶ stopping ──▶ gone

Invariants (docs/adr/0027-node.md):

- A process of a name runs at most once. What was asked to stop is never started again.
- A crash is an end that nobody asked for, whatever the exit code; past the cap of the policy it ends the node (`CrashLoop`).
- A drain takes at most its grace, a hurried one `HURRY_S` from when it was hurried; what is left then is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from ops.child_processes import Child, ChildProcesses
from ops.node.processes import SERVICE, SUPERVISOR, ProcessPlan, rollstream_command
from ops.node.restarts import RestartPolicy, decide_restart
from pipeline.logs import redact_text
from pipeline.messages import Stage

log = structlog.get_logger(__name__)

HURRY_S = 10.0
"""A worker hands back in a moment, and leaves work that is deaf behind after 5 s."""
LANE_LOOK_S = 0.25
AGAIN_S = 0.2
"""Between two signals to who shall hand back: of two that come at once the system may deliver one."""
State = Literal["up", "waiting", "stopping"]


@dataclass(frozen=True, slots=True)
class DrainShares:
    """When each stage is asked to stop, and to hand back, as shares of the grace."""

    init_back: float = 0.25
    run_stop: float = 0.4
    run_back: float = 0.8
    eval_back: float = 0.9


SHARES = DrainShares()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An end that nobody asked for."""

    name: str
    code: int
    """Negative: the signal."""
    at_s: float
    """Since 1970."""
    tail: str
    """Its last lines, redacted."""

    @property
    def end(self) -> str:
        """How it ended, in words."""
        return f"exit code {self.code}" if self.code >= 0 else f"signal {signal.Signals(-self.code).name}"


class CrashLoop(Exception):
    """A process crashed more often in a row than is borne."""

    def __init__(self, crash: Crash, crashes: int) -> None:
        self.crash = crash
        times = "once, and a restart does not mend it" if crashes == 1 else f"{crashes} times in a row"
        super().__init__(f"{crash.name} crashed {times}: {crash.end}")


@dataclass(slots=True)
class Process:
    """A process of the node, and how it stands."""

    plan: ProcessPlan
    child: Child
    state: State = "up"
    crashes: int = 0
    """In a row."""
    due_s: float = 0.0
    """When it is started again, on the monotonic clock."""
    hands_back: bool = False
    """It was told to."""

    @property
    def runs(self) -> bool:
        return self.child.exit_code is None

    @property
    def pid(self) -> int:
        return self.child.process.pid


class Supervision:
    """The processes of one node.

    Args:
        children: that it starts them as; leaving it kills what is left.
        on_change: called after each start and end.
        command_of: what a plan means; by default `rollstream` with its arguments.
        said_by: the last lines of one that ended; by default what it printed.
    """

    def __init__(
        self,
        children: ChildProcesses,
        policy: RestartPolicy,
        *,
        on_change: Callable[[], None] = lambda: None,
        command_of: Callable[[ProcessPlan], Sequence[str]] = rollstream_command,
        said_by: Callable[[Child], str] = Child.last_lines,
    ) -> None:
        self._children = children
        self._policy = policy
        self._on_change = on_change
        self._command_of = command_of
        self._said_by = said_by
        self._processes: dict[str, Process] = {}
        self._wake = asyncio.Event()
        self.crash_count = 0
        self.last_crash: Crash | None = None

    @property
    def processes(self) -> Sequence[Process]:
        """All of them, in the order of their first start."""
        return tuple(self._processes.values())

    def slots_of(self, stage: Stage) -> dict[int, int]:
        """Index -> slots of the processes of a stage that stay; those that are to be started again as well."""
        return {each.plan.index: each.plan.slots for each in self._of(stage) if each.state != "stopping"}

    def indexes_of(self, stage: Stage) -> set[int]:
        """All that are in use."""
        return {each.plan.index for each in self._of(stage)}

    def start(self, *plans: ProcessPlan) -> None:
        """Starts processes."""
        for plan in plans:
            self._processes[plan.name] = Process(plan, self._launch(plan))
        self._changed()

    def retire(self, *names: str) -> None:
        """Asks processes to stop, and forgets them when they have."""
        for name in names:
            self._ask_to_stop(self._processes[name])
        self._changed()

    async def run(self, stop: asyncio.Event) -> None:
        """Keeps them until `stop` is set.

        Raises:
            CrashLoop: one crashed too often; the others run on.
        """
        with self._children.endings() as ended:
            while not stop.is_set():
                ended.clear()
                self._wake.clear()
                self._bury()
                self._start_due()
                due = min((each.due_s for each in self._processes.values() if each.state == "waiting"), default=None)
                await _any_of(stop, ended, self._wake, timeout_s=None if due is None else max(0.0, due - time.monotonic()))

    async def drain(
        self, grace_s: float, hurry: asyncio.Event, *, lane_waits: Callable[[], Awaitable[bool]] | None = None, shares: DrainShares = SHARES
    ) -> list[str]:
        """Ends them by stage: INIT, RUN with the supervisor, EVAL, the sandbox service.

        Args:
            hurry: once it is set everything hands back.
            lane_waits: whether something still waits in the node's lane for RUN.

        Returns:
            Names of those that had to be killed.
        """
        began_s = time.monotonic()
        init, evaluators = self._of(Stage.INIT), self._of(Stage.EVAL)
        runners = [each for each in self._processes.values() if each.plan.stage is Stage.RUN or each.plan.name == SUPERVISOR]
        service = [each for each in self._processes.values() if each.plan.name == SERVICE]
        for each in self._processes.values():
            if each.state == "waiting":
                each.state = "stopping"

        def at(share: float) -> float:
            return began_s + share * grace_s

        with self._children.endings() as ended:
            waiting = _Waiting(ended, hurry, self._on_change)
            self._stop(init)
            await waiting.until_gone(init, at(shares.init_back))
            self._hand_back(init)
            await waiting.until_gone(init, at(shares.run_stop))
            if lane_waits is not None:
                await waiting.until_not(lane_waits, at(shares.run_stop))
            self._stop(runners)
            await waiting.until_gone(runners, at(shares.run_back))
            self._hand_back(runners)
            await waiting.until_gone(runners, at(shares.eval_back))
            self._stop(evaluators)
            await waiting.until_gone(evaluators, at(shares.eval_back))
            workers = [*init, *runners, *evaluators]
            self._hand_back(workers)
            end_s = min(at(1.0), time.monotonic() + HURRY_S) if hurry.is_set() else at(1.0)
            # the service has its own moment, also when workers are deaf
            await waiting.until_gone(workers, end_s - min(2.0, 0.05 * grace_s), heeds_hurry=False)
            self._stop(service)
            if hurry.is_set():
                self._hand_back(service)
            await waiting.until_gone([*workers, *service], end_s, heeds_hurry=False)
        return await self._kill_left([*workers, *service])

    async def end(self, grace_s: float, hurry: asyncio.Event) -> list[str]:
        """Ends them all at once, for those that need no order.

        Args:
            hurry: once it is set each is told a second time.

        Returns:
            Names of those that had to be killed.
        """
        end_s, everything = time.monotonic() + grace_s, [*self._processes.values()]
        with self._children.endings() as ended:
            waiting = _Waiting(ended, hurry, self._on_change)
            self._stop(everything)
            await waiting.until_gone(everything, end_s)
            if hurry.is_set():
                self._hand_back(everything)
                await waiting.until_gone(everything, min(end_s, time.monotonic() + HURRY_S), heeds_hurry=False)
        return await self._kill_left(everything)

    # ---- steps

    async def _kill_left(self, processes: Sequence[Process]) -> list[str]:
        killed = [each for each in processes if each.runs]
        for each in killed:
            log.error("process_killed", process=each.plan.name, pid=each.pid, what="it did not leave within the grace of the drain")
            each.child.process.kill()
            await asyncio.to_thread(each.child.process.wait)
        self._bury()
        return [each.plan.name for each in killed]

    def _of(self, stage: Stage) -> list[Process]:
        return [each for each in self._processes.values() if each.plan.stage is stage]

    def _launch(self, plan: ProcessPlan) -> Child:
        child = self._children.start_command(plan.name, self._command_of(plan))
        log.info("process_started", process=plan.name, pid=child.process.pid)
        return child

    def _start_due(self) -> None:
        for each in self._processes.values():
            if each.state == "waiting" and each.due_s <= time.monotonic():
                each.child, each.state = self._launch(each.plan), "up"
                self._on_change()

    def _bury(self) -> None:
        """Sees to those that have ended."""
        for each in [*self._processes.values()]:
            if each.runs or each.state == "waiting":
                continue
            if each.state == "stopping":
                log.info("process_stopped", process=each.plan.name, code=each.child.exit_code)
                del self._processes[each.plan.name]
                self._children.forget(each.child)
            else:
                self._crashed(each)
            self._on_change()

    def _crashed(self, process: Process) -> None:
        code, ran_s = process.child.exit_code, time.monotonic() - process.child.started_s
        assert code is not None
        process.child.asked_to_stop = True  # it is seen to
        self.crash_count += 1
        self.last_crash = Crash(name=process.plan.name, code=code, at_s=time.time(), tail=redact_text(self._said_by(process.child)))
        restart = decide_restart(self._policy, crashes=process.crashes, ran_s=ran_s, code=code)
        process.state = "waiting"
        if restart is None:
            process.due_s = float("inf")
            raise CrashLoop(self.last_crash, 1 if ran_s >= self._policy.well_after_s else process.crashes + 1)
        process.crashes, process.due_s = restart.crashes, time.monotonic() + restart.pause_s
        log.warning(
            "process_crashed",
            process=process.plan.name,
            end=self.last_crash.end,
            ran_s=round(ran_s, 1),
            crashes=restart.crashes,
            again_in_s=restart.pause_s,
            said=self.last_crash.tail,
        )

    def _stop(self, processes: Iterable[Process]) -> None:
        for each in processes:
            if each.state != "stopping":
                self._ask_to_stop(each)
        self._changed()

    def _ask_to_stop(self, process: Process) -> None:
        process.state, process.child.asked_to_stop = "stopping", True
        if process.runs:
            process.child.process.send_signal(signal.SIGTERM)

    def _hand_back(self, processes: Iterable[Process]) -> None:
        """A second signal."""
        for each in processes:
            if each.runs:
                each.hands_back = True
                self._ask_to_stop(each)

    def _changed(self) -> None:
        self._wake.set()
        self._on_change()


class _Waiting:
    """Waits of a drain: each ends when what it waits for is so, at its time, or when the drain is hurried."""

    def __init__(self, ended: asyncio.Event, hurry: asyncio.Event, on_change: Callable[[], None]) -> None:
        self._ended = ended
        self._hurry = hurry
        self._on_change = on_change

    async def until_gone(self, processes: Sequence[Process], until_s: float, *, heeds_hurry: bool = True) -> None:
        news = (self._ended, self._hurry) if heeds_hurry else (self._ended,)
        while (left_s := until_s - time.monotonic()) > 0 and not (heeds_hurry and self._hurry.is_set()):
            self._ended.clear()
            there = [each for each in processes if each.runs]
            if not there:
                break
            await _any_of(*news, timeout_s=min(left_s, AGAIN_S) if any(each.hands_back for each in there) else left_s)
            for each in there:
                if each.hands_back and each.runs:
                    each.child.process.send_signal(signal.SIGTERM)
        self._on_change()

    async def until_not(self, condition: Callable[[], Awaitable[bool]], until_s: float) -> None:
        while not self._hurry.is_set() and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    if not await condition():
                        return
            await _any_of(self._hurry, timeout_s=min(LANE_LOOK_S, left_s))


async def _any_of(*events: asyncio.Event, timeout_s: float | None) -> None:
    """Returns when one is set, or the time is up."""
    if any(event.is_set() for event in events):
        return
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
