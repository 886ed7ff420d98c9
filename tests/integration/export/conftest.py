"""Runs with results that nobody has read yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pipeline.codec import encode
from pipeline.keys import Keys
from pipeline.messages import Stage, Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.calls import Unit
from pipeline.testing import A_RUN, ManualWorker, a_grade, a_settlement, a_template, a_trajectory, a_unit

Make = Callable[[int], Trajectory]


@dataclass
class Results:
    """A connected run whose jobs are worked by hand."""

    scripts: Scripts
    incarnation: int
    name: str = A_RUN
    ended: list[str] = field(default_factory=list)
    """Jobs in the order in which they ended."""

    @property
    def client(self) -> AsyncClient:
        return self.scripts.run_script.client

    @property
    def keys(self) -> Keys:
        return self.scripts.keys

    async def accept(self, *units: Unit) -> None:
        """Accepts units."""
        await self.scripts.accept(
            self.name, self.incarnation, a_template(), "tpl1", b"template", units, max_waiting=100_000, window=100_000
        )

    async def add(self, count: int, *, make: Make = lambda number: a_trajectory(), first: int | None = None) -> list[str]:
        """Single jobs that ended well, each with a trajectory of its own."""
        begin = len(self.ended) if first is None else first
        await self.accept(*(a_unit(self.name, f"p{number}") for number in range(begin, begin + count)))
        for stage in (Stage.INIT, Stage.RUN):
            worker = ManualWorker(self.scripts, stage)
            held = await worker.take(count)
            for at, job in enumerate(held):
                await worker.hand_off(job, body=encode(make(begin + at)))
        worker = ManualWorker(self.scripts, Stage.EVAL)
        jobs = await worker.take(count)
        for at, job in enumerate(jobs):
            reward = float((begin + at) % 2)
            await worker.settle(job, settlement=a_settlement(reward), body=encode(a_grade(reward, details={"n": begin + at})), kind="eval")
        self.ended += [job.job for job in jobs]
        return [job.job for job in jobs]

    async def add_cancelled(self, prompt: str) -> str:
        """A job that somebody cancelled while it waited."""
        unit = a_unit(self.name, prompt)
        await self.accept(unit)
        await self.scripts.cancel("job", [unit.id], "user")
        return unit.id

    async def add_broken(self, prompt: str) -> str:
        """A job whose sandbox broke, for good."""
        unit = a_unit(self.name, prompt)
        await self.accept(unit)
        worker = ManualWorker(self.scripts, Stage.INIT)
        (held,) = await worker.take(1)
        await worker.settle(held, settlement=a_settlement(None), kind="init")
        return unit.id

    async def add_record(self, kind: str, **fields: str | int | float) -> str:
        """A record as the scripts of the ledger write it."""
        words = [word for pair in fields.items() for word in pair]
        entry = await ask(self.client, "XADD", self.keys.results(self.name), "*", "kind", kind, "run", self.name, *words)
        await ask(self.client, "EXPIRE", self.keys.results(self.name), 600)
        return str(entry.decode())

    async def ack_all(self) -> None:
        """Lets go of all jobs."""
        entries = await ask(self.client, "XRANGE", self.keys.results(self.name), "-", "+")
        jobs = [(entry.decode(), "job", fields[b"job"].decode()) for entry, fields in entries if fields[b"kind"] == b"job"]
        await self.scripts.ack(self.name, self.incarnation, jobs)  # type: ignore[arg-type]  # the kind is one of its words


@pytest.fixture
async def results(scripts: Scripts) -> Results:
    """A run without results."""
    return Results(scripts, await scripts.connect_run(A_RUN, nonce="trainer", ttl_s=86_400.0))
