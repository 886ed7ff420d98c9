"""A run with a trainer, for tests that call the scripts one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from pipeline.messages import JobTemplate, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import Accepted, Held
from pipeline.testing import ManualWorker, QueueAudit, a_template, carry


@dataclass
class Run:
    """One run, connected."""

    name: str
    incarnation: int
    scripts: Scripts
    audit: QueueAudit
    units: list[Unit] = field(default_factory=list)

    @property
    def client(self) -> AsyncClient:
        return self.audit.client

    async def accept(
        self, *units: Unit, template: JobTemplate | None = None, window: int = 1024, max_waiting: int = 100_000, incarnation: int = 0
    ) -> list[bool]:
        """Accepts units, and has them audited from then on; True for each that is new."""
        accepted = await self.scripts.accept(
            self.name,
            incarnation or self.incarnation,
            template or a_template(),
            "tpl1",
            b"template",
            units,
            max_waiting=max_waiting,
            window=window,
        )
        new = [state is Accepted.NEW for state in accepted]
        self.units += [unit for unit, is_new in zip(units, new, strict=True) if is_new]
        return new

    def worker(self, stage: Stage, consumer: str = "w1", boot: str = "boot1", stream: str = "", window: int = 1024) -> ManualWorker:
        """A worker of a stage."""
        return ManualWorker(self.scripts, stage, consumer, boot=boot, stream=stream, window=window)

    async def reach(self, stage: Stage) -> list[Held]:
        """Takes every job to a stage and begins it there."""
        return await carry(self.scripts, to=stage)

    async def successor(self, worker: ManualWorker, boot: str) -> ManualWorker:
        """The next boot of a worker's name, after the lock of the one before lapsed."""
        await ask(self.client, "DEL", self.audit.keys.worker(worker.consumer))
        next_boot = ManualWorker(self.scripts, worker.stage, worker.consumer, boot=boot, stream=worker.stream, window=worker.window)
        assert await next_boot.take_name() is None
        return next_boot

    async def states(self) -> dict[str, int]:
        """How many jobs of the run are in which state."""
        count: dict[str, int] = {}
        for unit in self.units:
            for member in range(max(1, unit.members)):
                h = await self.audit.job(f"{unit.id}.{member}" if unit.members else unit.id)
                count[h.get("st", "gone")] = count.get(h.get("st", "gone"), 0) + 1
        return count


Connect = Callable[..., Awaitable[Run]]


@pytest.fixture
async def connect(scripts: Scripts) -> Connect:
    """Connects runs."""
    audit = QueueAudit(scripts.run_script.client, scripts.keys)

    async def connect(name: str = "run1", *, nonce: str = "", weight: float = 1.0, quota: int = 0, ttl_s: float = 86_400.0) -> Run:
        incarnation = await scripts.connect_run(name, nonce=nonce or f"{name}-trainer", ttl_s=ttl_s, weight=weight, quota=quota)
        return Run(name, incarnation, scripts, audit)

    return connect


@pytest.fixture
async def run(connect: Connect) -> AsyncIterator[Run]:
    """One run. After the test all that it was given must fit together (see `QueueAudit`)."""
    run = await connect()
    yield run
    if await ask(run.client, "EXISTS", run.audit.keys.run(run.name)):
        assert await run.audit.faults(run.name, run.units) == []
