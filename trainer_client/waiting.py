"""Why nothing comes, as a client says it: what it alone knows (its outage, what it has read), and what Redis tells
(`pipeline/wait_reasons.py`). Its blocking facade, its line of progress and its time-outs all say these reasons, in this order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pipeline.causes import Cause, Reason, in_order
from pipeline.counts import counted
from pipeline.errors import BrokerError
from pipeline.supervisor.actions import Verdict
from trainer_client.contact import Contact
from trainer_client.inbox import Inbox

if TYPE_CHECKING:  # loaded when the first wait is asked why
    from pipeline.wait_reasons import WaitReasons

REACH = "see that it is up and can be reached from here"


class ClientWaits:
    """Looks for reasons, for one client. Never raises: that Redis cannot be asked is a reason.

    Args:
        make_reasons: what asks Redis; called when it is first needed.
    """

    def __init__(self, make_reasons: Callable[[], WaitReasons], inbox: Inbox, contact: Contact) -> None:
        self._make_reasons = make_reasons
        self._reasons: WaitReasons | None = None
        self._inbox = inbox
        self._contact = contact

    async def of_run(self) -> list[Reason]:
        """What stands in the way of the run as a whole."""
        return in_order([*self._held(), *await self._asked(lambda reasons: reasons.of_run())])

    async def of_job(self, job: str) -> list[Reason]:
        """What stands in the way of one job."""
        return await self._asked(lambda reasons: reasons.of_job(job))

    async def of_step(self, index: int) -> list[Reason]:
        """What stands in the way of one step."""
        known = [*self._held(), *self._missing(index), *self._dropped(index)]
        return in_order([*known, *await self._asked(lambda reasons: reasons.of_step(index))])

    async def _asked(self, ask: Callable[[WaitReasons], Awaitable[list[Reason]]]) -> list[Reason]:
        if outage := self._contact.outage:
            return [Reason(Cause.REDIS_AWAY, outage[0].upper() + outage[1:], REACH)]
        if self._reasons is None:
            self._reasons = self._make_reasons()
        try:
            return await ask(self._reasons)
        except BrokerError as error:
            return [Reason(Cause.REDIS_AWAY, f"Redis cannot be asked why ({error})", REACH)]

    def _held(self) -> list[Reason]:
        held = len(self._inbox.outside.held)
        what = counted(held, "group is held for its hook", "groups are held for their hook")
        return [Reason(Cause.HELD_FOR_HOOK, what, "see what run.group_hook does")] if held else []

    def _missing(self, step: int) -> list[Reason]:
        record = self._inbox.steps.get(step)
        missing = len(self._inbox.missing(record)) if record is not None else 0
        what = f"Step {step} is complete, but the records of {missing} of its groups are not in the stream"
        return [Reason(Cause.RECORDS_MISSING, what)] if missing else []

    def _dropped(self, step: int) -> list[Reason]:
        """What most groups fell to that taught nothing of their prompts: a broken policy or grader uses up a data set while one waits."""
        lost = [
            record for record in self._inbox.groups.values() if record.step == step and record.verdict in (Verdict.DROPPED, Verdict.DEAD)
        ]
        found = Counter(record.why for record in lost)
        member = {record.why: f"{record.group}.0" for record in lost}  # the latest of each
        return [
            Reason(
                Cause.GROUPS_DROPPED, f"{count} of its groups were dropped ({why})", f"rollstream job show {member[why]} tells of a member"
            )
            for why, count in found.most_common(1)
        ]
