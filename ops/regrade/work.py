"""Judges cases again, many at a time, as EVAL does: the task's own handler and limits, sandboxes of this node, gold when the grader breaks.

Nothing is written anywhere: no reward, no record. A case that cannot be judged is told with its reason and costs itself only; what no
case is to blame for (Redis is gone, the node's service does not start) ends the whole.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ops.regrade.cases import Case, NotGradable
from ops.regrade.difference import Found, Regraded
from ops.sandbox_service import ServiceNotStarted
from pipeline.errors import BrokerError
from pipeline.messages import Stage
from workers.handlers.base import StageContext
from workers.handlers.registry import Handlers
from workers.sandbox.base import SandboxProvider
from workers.sandbox.spec import SandboxOwner
from workers.stages.failures import described, failure_of, the_one_error
from workers.stages.held_sandboxes import HeldSandboxes
from workers.stages.judging import Judge

NOBODYS = (BrokerError, ServiceNotStarted)
"""What is wrong with the whole, and with no case."""


class Regrader:
    """Judges one case after another, or at a time.

    Args:
        handlers: the tasks of this installation, entered and left by the caller, as the sandboxes are.
        max_attached_bytes: bound of a job's by-products, which are dropped.
    """

    def __init__(self, handlers: Handlers, sandboxes: SandboxProvider | None, *, max_attached_bytes: int) -> None:
        self._handlers = handlers
        self._sandboxes = sandboxes
        self._max_attached_bytes = max_attached_bytes

    async def again(self, case: Case) -> Regraded:
        """One case. What kept it from being judged is in what it returns.

        Raises:
            BrokerError, ServiceNotStarted
        """
        began_s = time.monotonic()
        try:
            after, error = await self._judge(case), ""
        except Exception as raised:
            cause = the_one_error(raised)
            if isinstance(cause, NOBODYS) or not isinstance(cause, Exception):
                raise cause from raised
            after, error = Found(), described(failure_of(Stage.EVAL, cause))
        return Regraded(
            job=case.job,
            task=case.spec.template.task,
            outcome=case.outcome,
            before=case.before,
            after=after,
            error=error,
            seconds=round(time.monotonic() - began_s, 3),
        )

    async def _judge(self, case: Case) -> Found:
        handler = await self._handlers.find(case.spec.template.task)
        held = HeldSandboxes(self._sandboxes, _open) if self._sandboxes is not None else None
        context = StageContext(
            spec=case.spec,
            # no worker's sandbox of this job is touched, nor that of another regrade
            owner=SandboxOwner(job_id=f"regrade-{secrets.token_hex(8)}", attempt=1, boot_id=str(os.getpid())),
            gate=_open,
            progress=_ignored,
            retries=0,
            sandboxes=held,
        )
        judge = Judge(handler, context, case.environment, max_attached_bytes=self._max_attached_bytes)
        try:
            return Found.of((await judge.judge(case.trajectory, tries_left=False, broke_before=_never)).grade)
        finally:
            if held is not None:
                await held.take()


async def regrade(
    names: Iterable[str],
    read: Callable[[str], Awaitable[Case]],
    regrader: Regrader,
    *,
    parallel: int,
    told: Callable[[Regraded], None],
    done: Mapping[str, Regraded] | None = None,
) -> None:
    """Judges them all, at most `parallel` at a time.

    Args:
        names: what they mean is `read`'s to know.
        read: the case of a name; raises `NotGradable`.
        told: called with each as it is found, in no order.
        done: by job, what was found before and is told as it is.

    Raises:
        BrokerError, ServiceNotStarted
    """
    left, known = iter(names), done or {}

    async def work() -> None:
        for name in left:
            if name in known:
                told(known[name])
                continue
            try:
                case = await read(name)
            except NotGradable as error:
                told(Regraded(job=error.job, skipped=error.why))
                continue
            told(known[case.job] if case.job in known else await regrader.again(case))

    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(parallel):
                tasks.create_task(work(), name=f"regrade-{number}")
    except BaseExceptionGroup as group:
        raise the_first(group) from group


def the_first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of a group: several tasks meet the same Redis that is gone."""
    first = group.exceptions[0]
    return the_first(first) if isinstance(first, BaseExceptionGroup) else first


def _open() -> None:
    """The gate of a job that nobody can cancel from outside: who does, cancels the command."""


def _ignored(within_s: float) -> None:
    """Nobody waits for a sign of life."""


async def _never() -> bool:
    """Nothing was tried before: the second try comes at once."""
    return False
