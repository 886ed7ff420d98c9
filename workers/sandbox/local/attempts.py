"""The attempts of a job that have sandboxes below one scratch folder: a later one ends what earlier ones left, an earlier one is refused.

`seen_attempt` in a sandbox's folder only rises (`SandboxFolder.fence_off`), so an attempt that was passed stays refused, also by the next
process. All of it blocks.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from workers.sandbox.errors import SandboxGone, StaleAttempt
from workers.sandbox.local.folder import SandboxFolder, given_to, job_prefix, sandbox_paths
from workers.sandbox.local.teardown import tear_down_now
from workers.sandbox.spec import SandboxOwner

POOL_JOB = "pool"
"""Owner of what is kept ready for whoever comes first; no job has such a name."""


class Attempts:
    """Looks at the sandboxes of jobs, and ends them.

    Args:
        scratch: where sandboxes live.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def end_earlier(self, owner: SandboxOwner) -> None:
        """Everything that the job has here, its snapshots too.

        Raises:
            StaleAttempt: a later attempt of the job was seen here.
        """
        for folder in self.of_job(owner):
            with contextlib.suppress(SandboxGone):  # removed by somebody just now
                folder.fence_off(owner.attempt)
            tear_down_now(folder)

    def end_older(self, owner: SandboxOwner) -> None:
        """What earlier attempts still have, but for the job's snapshots: the attempt goes on from one, beside what it has already.

        Raises:
            StaleAttempt
        """
        self.refuse_stale(owner)
        for folder in self.of_job(owner):
            with contextlib.suppress(SandboxGone):
                state = folder.state()
                if state.seen_attempt < owner.attempt and not state.is_snapshot:
                    folder.fence_off(owner.attempt)
                    tear_down_now(folder)

    def end_rivals(self, folder: SandboxFolder, owner: SandboxOwner) -> None:
        """The second look of a start, when its own folder can be seen.

        Two attempts that start at once, a worker that lost its lease and the one that has it now, may both have found nothing at their
        first look. Of two second looks at least one finds the other's folder, and the higher attempt stays. Of twins, which only a worker
        that asks twice can make, the one with the higher id does.

        Raises:
            StaleAttempt: it is this one that goes; the caller tears it down.
            SandboxGone: another start has ended it already.
        """
        rivals = self.of_job(owner, beside=folder.sandbox_id)
        state = folder.state()
        if state.seen_attempt > owner.attempt:
            raise StaleAttempt(folder.sandbox_id, owner.attempt, state.seen_attempt)
        if state.ended:
            raise SandboxGone(folder.sandbox_id, "it was stopped")
        for rival in rivals:
            with contextlib.suppress(SandboxGone):
                seen = rival.state().seen_attempt
                if seen == owner.attempt and rival.sandbox_id > folder.sandbox_id:
                    raise StaleAttempt(folder.sandbox_id, owner.attempt, seen)
                rival.fence_off(owner.attempt)
            tear_down_now(rival)

    def refuse_stale(self, owner: SandboxOwner) -> None:
        """
        Raises:
            StaleAttempt: a later attempt of the job was seen here.
        """
        for folder in self.of_job(owner):
            with contextlib.suppress(SandboxGone):
                seen = folder.state().seen_attempt
                if seen > owner.attempt:
                    raise StaleAttempt(folder.sandbox_id, owner.attempt, seen)

    def of_job(self, owner: SandboxOwner, *, beside: str = "") -> list[SandboxFolder]:
        """The sandboxes of a job, whatever they were made for: none of the pool's, where one of many is no attempt of another.

        Args:
            beside: id of one that is left out.
        """
        found = []
        if owner.job_id == POOL_JOB:
            return []
        pool = job_prefix(POOL_JOB)
        for path in sandbox_paths(self._scratch, job_prefix(owner.job_id), pool):
            if path.name == beside or (path.name.startswith(pool) and not _was_given_to(path, owner.job_id)):
                continue
            with contextlib.suppress(SandboxGone):  # removed by a sweep just now
                folder = SandboxFolder.open(path)
                if folder.record.job_id == owner.job_id:
                    found.append(folder)
        return found


def _was_given_to(path: Path, job_id: str) -> bool:
    """Of one that was made for the pool. Most belong to others, or to nobody yet: then this is all that is read of it."""
    try:
        owner = given_to(path)
    except (OSError, ValueError):  # nobody can have what nobody can read
        return False
    return owner is not None and owner.job_id == job_id
