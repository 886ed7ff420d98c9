"""Whether a run works at all: a trainer whose first groups are all broken by infrastructure hears why, instead of waiting for a step.

The supervisor launches hardly anything after so many of them (`pipeline/supervisor/ledger.py`), so nothing is used up meanwhile. Once a
group of the run came through in this client, what breaks later is an outage: it is said in the log, and waited for.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.messages import JobResult, Outcome
from pipeline.supervisor.actions import Verdict
from trainer_client.errors import GroupsBroken
from trainer_client.logs import Log
from trainer_client.records import GroupRecord

log = Log(__name__)


class BrokenGroups:
    """Counts the groups in a row of which infrastructure broke every member.

    Args:
        run: for messages.
        incarnation: ours; groups of another say nothing.
    """

    def __init__(self, run: str, incarnation: int) -> None:
        self._run = run
        self._incarnation = incarnation
        self._in_a_row = 0
        self._one_came_through = False
        self._why = ""
        self._job = ""
        self._told_ms = 0

    def take(self, group: GroupRecord, members: Iterable[JobResult]) -> GroupsBroken | None:
        """A group was accounted; returns what its trainer is to hear, if anything.

        Args:
            members: records of its members that are here.
        """
        if group.incarnation != self._incarnation:
            return None
        if group.valid:
            self._one_came_through, self._in_a_row = True, 0
            return None
        broken = [member for member in members if member.outcome is Outcome.INFRA_FAILURE]
        if group.verdict not in (Verdict.DROPPED, Verdict.DEAD) or len(broken) < group.want:
            return None
        from pipeline.supervisor.ledger import BROKEN_IN_A_ROW

        self._in_a_row += 1
        self._why, self._job = broken[0].reason, broken[0].job
        if self._in_a_row < BROKEN_IN_A_ROW:
            return None
        ended_ms = int(group.entry.partition("-")[0])
        if not self._one_came_through:
            if ended_ms - group.age_s * 1000 < self._told_ms:
                return None  # it was in flight with those that were told of
            self._told_ms = ended_ms
            return self._error()
        if self._in_a_row == BROKEN_IN_A_ROW:
            log.warning("groups_broken", run=self._run, in_a_row=self._in_a_row, why=self._why, job=self._job)
        return None

    def at_the_end(self) -> GroupsBroken | None:
        """What a trainer is to hear whose prompts have ended before a single group came through."""
        return self._error() if self._in_a_row and not self._one_came_through else None

    def _error(self) -> GroupsBroken:
        from pipeline.supervisor.ledger import PROBE_EVERY_MS

        return GroupsBroken(self._run, self._in_a_row, self._why, self._job, probe_s=PROBE_EVERY_MS / 1000)
