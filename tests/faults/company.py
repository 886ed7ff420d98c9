"""Real worker processes, their diary, and a trainer's hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Prompt, Stage
from pipeline.process import PARENT_FD
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, QueueAudit, a_template, wait_until
from tests.integration.stages.fleet import RUN, TASK

PROGRAM = "tests.faults.playing_worker"


@dataclass(frozen=True)
class Line:
    """What a worker wrote into the diary."""

    what: str
    job: str
    attempt: int
    pid: int
    at_s: float
    """When the gate was passed last, by the monotonic clock of this machine."""


class Company:
    """One run and its worker processes."""

    def __init__(self, settings: QueueSettings, client: AsyncClient, children: ChildProcesses, folder: Path) -> None:
        self.settings = settings
        self.client = client
        self.children = children
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.audit = QueueAudit(client, self.keys)
        self.units: list[Unit] = []
        self.incarnation = 0
        self._folder = folder
        self._diary = folder / "diary"
        self._started = 0

    async def connect(self) -> None:
        """Takes the run."""
        self.incarnation = await self.scripts.connect_run(RUN, nonce="trainer", ttl_s=3600)

    async def add(self, *units: Unit, template: JobTemplate | None = None) -> None:
        """Puts units into the queue of the run."""
        template = template or a_template(task=TASK)
        await self.scripts.accept(
            RUN, self.incarnation, template, f"t{len(self.units)}", codec.encode(template), units, max_waiting=10**6, window=1024
        )
        self.units += units

    async def add_job(self, name: str = "job", *, template: JobTemplate | None = None, **asked: object) -> str:
        """One single job that waits for RUN; its id."""
        unit = Unit(f"{RUN}.{name}", 0, name, 0, "1.0", codec.encode(Prompt(id=name, data=asked)))
        await self.add(unit, template=template)
        await self.through_init()
        return unit.id

    async def through_init(self) -> None:
        """All that waits goes on to RUN."""
        worker = ManualWorker(self.scripts, Stage.INIT, "init-by-hand")
        held = await worker.take()
        for at in range(0, len(held), 32):
            await worker.hand_off(*held[at : at + 32], body=b"\x00\x82\xa7sandbox\x80\xa4data\x80")

    def environment(self) -> dict[str, str]:
        """Where the queue is."""
        return {
            "ROLLSTREAM_REDIS_URL": self.settings.redis_url,
            "ROLLSTREAM_NAMESPACE": self.settings.namespace,
            "ROLLSTREAM_LEASE_S": str(self.settings.lease_s),
            "ROLLSTREAM_RETRY_BACKOFF_S": str(self.settings.retry_backoff_s),
        }

    def start(self, stage: Stage, *, node: str = "n1", slots: int = 4, **environment: str) -> Child:
        """A worker process; the same node again is its successor."""
        self._started += 1
        return self.children.start(
            f"{stage.value}-{node}-{self._started}",
            PROGRAM,
            *self._arguments(stage, node, slots),
            environment={**self.environment(), **environment},
        )

    def start_with_a_parent(self, stage: Stage, **environment: str) -> tuple[subprocess.Popen[bytes], int]:
        """A worker process, and the end of the pipe whose closing is the end of its parent."""
        reads, writes = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, *self._arguments(stage, "n1", 4)],
            env={**os.environ, **self.environment(), **environment, PARENT_FD: str(reads)},
            pass_fds=(reads,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        return process, writes

    def _arguments(self, stage: Stage, node: str, slots: int) -> tuple[str, ...]:
        return stage.value, node, str(slots), str(self._folder / f"scratch-{node}"), str(self._diary)

    def kill(self, child: Child) -> None:
        """kill -9."""
        child.asked_to_stop = True
        child.process.kill()
        child.process.wait()

    def diary(self, what: str) -> list[Line]:
        """The lines of one kind."""
        lines = self._diary.read_text(encoding="ascii").splitlines() if self._diary.exists() else []
        found = [Line(words[0], words[1], int(words[2]), int(words[3]), float(words[4])) for words in map(str.split, lines)]
        return [line for line in found if line.what == what]

    async def until(self, what: str, count: int = 1) -> None:
        """Until the diary has so many lines of a kind."""
        await wait_until(lambda: len(self.diary(what)) >= count, f"{count} times {what!r} in the diary", timeout_s=30)

    async def results(self, count: int, *, timeout_s: float = 20.0) -> list[dict[str, str]]:
        """Terminal records, once there are so many."""

        async def enough() -> bool:
            return int(await ask(self.client, "XLEN", self.keys.results(RUN))) >= count

        await wait_until(enough, f"{count} results", timeout_s=timeout_s)
        return await self.audit.results(RUN)

    async def has_ended(self, child: Child, *, within_s: float) -> int:
        """Its exit code."""
        child.asked_to_stop = True
        await wait_until(lambda: child.exit_code is not None, f"{child.name} has ended: {log_tail(child.log)[-500:]}", timeout_s=within_s)
        assert child.exit_code is not None
        return child.exit_code
