"""Which version the policy has, as this trainer set it.

A new incarnation has none until its trainer says so: what its servers hold is not known before.
"""

from __future__ import annotations

from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.supervisor.staleness import Version
from trainer_client.calls import Calls
from trainer_client.progress import Progress


class PolicyVersion:
    """The current version of one run, in Redis and here."""

    def __init__(self, run: str, incarnation: int, progress: Progress, scripts: TrainerScripts, calls: Calls) -> None:
        self.current: Version | None = None
        """None = not set by this incarnation."""
        self._run = run
        self._incarnation = incarnation
        self._progress = progress
        self._scripts = scripts
        self._calls = calls

    async def set(self, number: int) -> None:
        """See `Run.set_policy_version`."""
        await self._calls.make_if_open(self._scripts.set_version, self._run, self._incarnation, number)
        self.current = Version(self._incarnation, number)
        self._progress.version = number

    async def repeat(self) -> None:
        """Says it again, in case Redis lost it."""
        if self.current is not None:
            await self.set(self.current.number)
