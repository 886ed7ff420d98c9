"""Records of a run's results stream in order, behind an entry, with their bodies; never more than a few of them in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from pipeline import codec
from pipeline.errors import DamagedBody, NewerMessage
from pipeline.keys import Keys
from pipeline.messages import Grade, JobResult, Outcome, Prompt, Stage, Trajectory
from pipeline.redis_client import AsyncClient, ask
from trainer_client.records import GroupRecord, Record, StepRecord, Unreadable, read_record

PAGE = 256
"""Entries a read: some 200 KB."""
BODIES_AT_ONCE = 8
Body = TypeVar("Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRecord:
    """One record and what belongs to it."""

    record: Record
    incarnation: int = 0
    prompt: Prompt | None = None
    trajectory: Trajectory | None = None
    grade: Grade | None = None
    unreadable: tuple[str, ...] = ()
    n_bytes: int = 0
    """Of the bodies as they were kept."""


@dataclass(slots=True)
class Reading:
    """Records of one kind.

    Args:
        cancelled: also jobs that were cancelled.
    """

    client: AsyncClient
    keys: Keys
    run: str
    kind: type[JobResult | GroupRecord | StepRecord]
    cancelled: bool = False
    left_out: int = 0
    """Cancelled ones that were passed over."""
    damaged: list[str] = field(default_factory=list)
    """Entries that are no record, with why; the first few."""

    async def behind(self, entry: str) -> AsyncIterator[list[ExportedRecord]]:
        """Batches of the records behind an entry, up to what is there now.

        Raises:
            BrokerError
        """
        start = f"({entry}"
        while True:
            page = await ask(self.client, "XRANGE", self.keys.results(self.run), start, "+", "COUNT", PAGE)
            wanted = [found for found in (self._read(word.decode(), fields) for word, fields in page) if found is not None]
            step = BODIES_AT_ONCE if self.kind is JobResult else PAGE
            for at in range(0, len(wanted), step):
                yield await self._with_bodies(wanted[at : at + step])
            if len(page) < PAGE:
                return
            start = "(" + page[-1][0].decode()

    def _read(self, entry: str, fields: dict[bytes, bytes]) -> tuple[Record, int] | None:
        try:
            record = read_record(entry, [word for pair in fields.items() for word in pair])
            incarnation = int(fields.get(b"inc") or 0)
        except (Unreadable, ValueError) as error:
            if len(self.damaged) < 20:
                self.damaged.append(f"{entry}: {error}")
            return None
        if not isinstance(record, self.kind):
            return None
        if isinstance(record, JobResult) and record.outcome is Outcome.CANCELLED and not self.cancelled:
            self.left_out += 1
            return None
        return record, incarnation

    async def _with_bodies(self, wanted: Sequence[tuple[Record, int]]) -> list[ExportedRecord]:
        if self.kind is not JobResult:
            return [ExportedRecord(record=record, incarnation=incarnation) for record, incarnation in wanted]
        names: list[str] = []
        for record, _ in wanted:
            assert isinstance(record, JobResult)
            names.append(self.keys.prompt(record.group or record.job))
            names.append(self.keys.body(record.job, record.run_attempt, Stage.RUN.value))
            names.append(self.keys.body(record.job, record.eval_attempt, Stage.EVAL.value))
        bodies = cast(list[bytes | None], await ask(self.client, "MGET", *names))
        found = []
        for at, (record, incarnation) in enumerate(wanted):
            of_job, unreadable = bodies[3 * at : 3 * at + 3], list[str]()
            found.append(
                ExportedRecord(
                    record=record,
                    incarnation=incarnation,
                    prompt=_decoded(Prompt, of_job[0], unreadable),
                    trajectory=_decoded(Trajectory, of_job[1], unreadable),
                    grade=_decoded(Grade, of_job[2], unreadable),
                    unreadable=tuple(unreadable),
                    n_bytes=sum(len(body) for body in of_job if body),
                )
            )
        return found


def _decoded(cls: type[Body], body: bytes | None, unreadable: list[str]) -> Body | None:
    if body is None:
        return None
    try:
        return codec.decode(cls, body)
    except (DamagedBody, NewerMessage) as error:
        unreadable.append(f"{cls.__name__.lower()}: {error}")
        return None


__all__ = ["ExportedRecord", "Reading"]
