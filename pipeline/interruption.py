"""The tasks of a consumer's attempts, and what becomes of those that were interrupted.

An attempt is interrupted by a cancel, by the loss of its lease, by its own silence, or when its worker leaves. Its work then cleans up and
ends; that is anybody's code, and some of it goes on.

Invariants:
  1. A cancelled job is settled `CLEAN_UP_S` after its interruption at the latest, also over the head of work that still cleans up: the
     mark stands in Redis, nothing that the attempt could still do changes how the job ends. One whose deadline passed may still hand over
     what it has, and is waited for as any other.
  2. Work that has not ended `LEFT_BEHIND_S` after its interruption is left behind, loudly: what it holds is taken from it
     (`JobControl.on_left_behind`), its attempt is concluded, and nobody waits for it any more.
  3. So whoever waits for the end of all attempts waits a bounded time once they were interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

import structlog

from pipeline.attempts import JobControl
from pipeline.messages import CancelReason

log = structlog.get_logger(__name__)

CLEAN_UP_S = 0.8
"""Promise 4 wants a cancelled job settled within a second."""
LEFT_BEHIND_S = 5.0
"""A sandbox is killed in milliseconds, a model request ended in half a second at most: what takes ten times as long is deaf."""
TAKING_S = 10.0
"""What work holds is taken from it within this time, or not at all."""


class AttemptTasks:
    """The tasks of attempts. An async context manager: leaving it waits for them, by an error after interrupting them.

    Args:
        overdue: called when a cancelled attempt is to be concluded although its work has not ended.
        gone: called once for each attempt, when its work has ended or is left behind.
    """

    def __init__(self, *, overdue: Callable[[JobControl], None], gone: Callable[[JobControl], None]) -> None:
        self._overdue = overdue
        self._gone = gone
        self._working: dict[asyncio.Task[None], JobControl] = {}
        self._clocks: dict[JobControl, list[asyncio.TimerHandle]] = {}
        self._left: set[asyncio.Task[None]] = set()
        self._taking: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.interrupt_all()
        await self.ended()

    def start(self, control: JobControl, work: Coroutine[object, object, None], name: str) -> None:
        """Begins the work of an attempt."""
        control.task = task = asyncio.get_running_loop().create_task(work, name=name)
        control.on_interrupted = self.interrupted
        self._working[task] = control
        # also of a task that is cancelled before its first step, which runs no line of its work
        task.add_done_callback(self._has_ended)

    def works(self, control: JobControl) -> bool:
        """Whether the work of an attempt goes on, and was not left behind."""
        return control.task in self._working

    def interrupt_all(self) -> None:
        """Interrupts all that work; those that were interrupted before clean up, and are not disturbed in it."""
        for task, control in [*self._working.items()]:
            if control not in self._clocks:
                task.cancel()
                self.interrupted(control)

    async def ended(self) -> None:
        """Returns when all work has ended or was left behind."""
        while self._working or self._taking:
            self._changed.clear()
            await self._changed.wait()

    def interrupted(self, control: JobControl) -> None:
        """Notes that an attempt was interrupted: its time runs."""
        if control in self._clocks or control.task not in self._working:
            return
        loop = asyncio.get_running_loop()
        self._clocks[control] = [
            loop.call_later(CLEAN_UP_S, self._is_overdue, control),
            loop.call_later(LEFT_BEHIND_S, self._leave_behind, control),
        ]

    def _is_overdue(self, control: JobControl) -> None:
        if control.cancel_reason and control.cancel_reason != CancelReason.DEADLINE:
            self._overdue(control)

    def _leave_behind(self, control: JobControl) -> None:
        assert control.task is not None, "interrupted() looks at its task"
        log.error(
            "work_left_behind",
            job_id=control.held.job,
            task=control.task.get_name(),
            after_s=LEFT_BEHIND_S,
            what="it was interrupted and goes on; its handler swallows CancelledError",
        )
        taking = asyncio.get_running_loop().create_task(self._take_from(control, control.task), name=f"leave {control.held.job}")
        self._taking.add(taking)
        taking.add_done_callback(self._has_taken)

    async def _take_from(self, control: JobControl, task: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(TAKING_S):
                await asyncio.gather(*(take() for take in control.what_to_take()))
        except Exception:
            log.exception("work_keeps_something", job_id=control.held.job)
        if self._working.pop(task, None) is not None:
            self._left.add(task)
            self._forget(control)

    def _has_taken(self, taking: asyncio.Task[None]) -> None:
        self._taking.discard(taking)
        self._changed.set()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        control = self._working.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("attempt_raised", task=task.get_name(), error=repr(task.exception()))
        if control is not None:
            self._forget(control)
        elif task in self._left:
            self._left.discard(task)
            log.info("left_work_ended", task=task.get_name())

    def _forget(self, control: JobControl) -> None:
        for clock in self._clocks.pop(control, ()):
            clock.cancel()
        self._gone(control)
        self._changed.set()
