"""Workers of a dapo case: they take what was launched as far as RUN, and end it when the case says so, by the product's own scripts."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.codec import encode
from pipeline.messages import Settlement, Stage
from pipeline.scripts import Scripts
from pipeline.scripts.calls import MAX_BATCH, Held, Settle
from pipeline.testing import ManualWorker, a_grade, a_trajectory

BODY_TTL_MS = 3_600_000
LIVES = frozenset(("0", "1"))
"""What a renewal says of a job that nobody cancelled."""


class DapoFleet:
    """One worker a stage."""

    def __init__(self, scripts: Scripts) -> None:
        self._init, self._run, self._eval = (ManualWorker(scripts, stage) for stage in Stage)
        self.running: dict[str, Held] = {}
        """Jobs that are at work in RUN."""
        self.begun: list[str] = []
        """Jobs in the order in which they were begun in RUN; a retry is there again."""
        self.ended: set[str] = set()
        """Jobs that ended by themselves, and were not cancelled before."""
        self._held: dict[str, Held] = {}

    async def carry(self) -> None:
        """Begins all that can be begun: INIT is passed at once."""
        for worker in (self._init, self._run, self._eval):
            await worker.take_name()
        made = await self._init.take()
        for at in range(0, len(made), MAX_BATCH):
            await self._init.hand_off(*made[at : at + MAX_BATCH])
        for held in await self._run.take():
            self.running[held.job] = held
            self.begun.append(held.job)

    async def end(self, ends: Mapping[str, Settlement]) -> list[str]:
        """Ends jobs, those at work in one script; returns the jobs of which nobody took the report."""
        known = [job for job in ends if job in self.running]
        handed = [self.running.pop(job) for job in known]
        if handed:
            words = await self._run.hand_off(*handed, body=encode(a_trajectory()))
            for held, word in zip(handed, words, strict=True):
                if word.startswith("cx:"):
                    await self._run.settle(held)
            graded = await self._eval.take()
            self._held.update({held.job: held for held in graded})
            for at in range(0, len(graded), MAX_BATCH):
                part = graded[at : at + MAX_BATCH]
                words = await self._eval.scripts.settle(Stage.EVAL, [_settle(held, ends[held.job]) for held in part], ttl_ms=BODY_TTL_MS)
                self.ended.update(held.job for held, word in zip(part, words, strict=True) if word == "ok")
        return [job for job in ends if job not in known and not await self._report_late(job, ends[job])]

    async def fail(self, job: str, why: str) -> bool:
        """The attempt broke; again when its job has tries left. False when it is not at work."""
        held = self.running.pop(job, None)
        if held is None:
            return False
        if await self._run.give_up(held, kind="failed", why=why) == ["dead"]:
            self.ended.add(job)
        await self.carry()
        return True

    async def obey(self) -> int:
        """Asks whether what is at work is still wanted, and ends what is not; returns how many that were."""
        jobs = list(self.running.values())
        stopped = 0
        for at in range(0, len(jobs), MAX_BATCH):
            part = jobs[at : at + MAX_BATCH]
            _, words = await self._run.renew(*part)
            for held, word in zip(part, words, strict=True):
                if word not in LIVES:
                    await self._run.settle(self.running.pop(held.job))
                    stopped += 1
        return stopped

    async def _report_late(self, job: str, settlement: Settlement) -> bool:
        """The attempt that ended a job reports again, and so does one after it that never was: neither may change a thing."""
        held = self._held.get(job)
        if held is None:
            return False
        later = Held(held.stream, held.entry, held.job, held.attempt + 1)
        for attempt in (held, later):
            words = await self._eval.scripts.settle(Stage.EVAL, [_settle(attempt, settlement)], ttl_ms=BODY_TTL_MS)
            if words[0] not in ("again", "fenced"):
                raise AssertionError(f"{job} was ended twice: {words[0]}")
        return True


def _settle(held: Held, settlement: Settlement) -> Settle:
    return Settle(held, 5, encode(a_grade(0.0)), "eval", settlement)
