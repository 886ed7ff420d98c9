"""A stage for the scenarios: a private server, workers that act (`pipeline.testing.acting_worker`), a run, and eyes on what comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ops.child_processes import Child, ChildProcesses
from pipeline import codec
from pipeline.errors import BrokerError
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import new_nonce
from pipeline.settings import QueueSettings
from pipeline.testing.queue_audit import QueueAudit
from pipeline.testing.servers import Persistence, PrivateServer, found_servers
from pipeline.testing.wait import WaitedTooLong, wait_until
from tests.cases.case import Difference

RUN = "case"
WAIT_S = 30.0


class QueueStage:
    """One scenario's server, workers and run."""

    def __init__(self, server: PrivateServer, settings: QueueSettings, client: AsyncClient, children: ChildProcesses, folder: Path) -> None:
        self.server = server
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.audit = QueueAudit(client, self.keys)
        self.units: list[Unit] = []
        self.incarnation = 0
        self._children = children
        self._diary = folder / "diary"
        self._started = 0

    # ---- doing

    def start_worker(self, name: str, *, slots: int = 4, **environment: str) -> Child:
        """Starts a worker; the same name again is its successor."""
        self._started += 1
        return self._children.start(
            f"{name}-{self._started}",
            "pipeline.testing.acting_worker",
            name,
            str(slots),
            str(self._diary),
            environment=environment,
        )

    async def add(self, job: str, *, max_failed: int = 2, members: int = 0, **asked: object) -> str:
        """Puts a job into the queue; returns its id."""
        template = JobTemplate(task="acting", max_failed=max_failed, expected_bytes=1024)
        unit = Unit(f"{RUN}.{job}" + (".0" if members else ""), members, job, 0, "1.0", codec.encode(Prompt(id=job, data=asked)))
        await self.scripts.accept(
            RUN, self.incarnation, template, f"t{max_failed}", codec.encode(template), [unit], max_waiting=10**6, window=256
        )
        self.units.append(unit)
        return unit.id

    # ---- seeing

    def diary(self, what: str, job: str) -> int:
        """How often RUN of a job began or ended."""
        lines = self._diary.read_text(encoding="ascii").splitlines() if self._diary.exists() else []
        return sum(line.split()[:2] == [what, job] for line in lines)

    async def results(self) -> list[dict[str, str]]:
        """Terminal records so far."""
        return await self.audit.results(RUN)

    async def wait_results(self, count: int, timeout_s: float = WAIT_S) -> list[dict[str, str]]:
        """Terminal records, once there are so many."""

        async def enough() -> bool:
            try:
                return len(await self.results()) >= count
            except (BrokerError, OSError):
                return False  # the server is being started again

        await wait_until(enough, f"{count} results", timeout_s=timeout_s)
        return await self.results()

    async def wait_begun(self, job: str) -> None:
        """Until RUN of a job began."""
        await wait_until(lambda: self.diary("begin", job) > 0, f"RUN of {job} began", timeout_s=WAIT_S)

    async def verdicts(self, *, but: str = "no fault at all") -> list[Difference]:
        """What holds for every scenario: each job has exactly one result, none is lost, no worker died by itself.

        Args:
            but: faults with this word in them belong to the story.
        """
        found: list[Difference] = []

        async def look() -> list[str]:
            return [fault for fault in await self.audit.all_ended(RUN, self.units) if but not in fault]

        async def none_left() -> bool:
            return not await look()

        with suppress(WaitedTooLong):  # what is left is told below
            await wait_until(none_left, "no fault is left", timeout_s=5.0)
        faults = await look()
        if faults:
            found.append(Difference("exactly one result a job, none lost", [], faults))
        died = [
            f"{child.name}: {child.exit_code}"
            for child in self._children.children
            if child.exit_code not in (None, 0) and not child.asked_to_stop
        ]
        if died:
            found.append(Difference("workers alive", [], died))
        return found


@asynccontextmanager
async def queue_stage(
    *,
    lease_s: float = 30.0,
    persistence: Persistence = "none",
    max_body_bytes: int | None = None,
    server_environment: Mapping[str, str] | None = None,
    worker_environment: Mapping[str, str] | None = None,
) -> AsyncIterator[QueueStage]:
    """A stage on the preferred server."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="case-")))
        server = stack.enter_context(PrivateServer(found_servers()[0], persistence=persistence, environment=server_environment))
        settings = QueueSettings(redis_url=server.url, lease_s=lease_s)
        environment = {
            "ROLLSTREAM_REDIS_URL": server.url,
            "ROLLSTREAM_LEASE_S": str(lease_s),
            "ROLLSTREAM_RETRY_BACKOFF_S": "0.05",
            **({} if max_body_bytes is None else {"ROLLSTREAM_MAX_BODY_BYTES": str(max_body_bytes)}),
            **(worker_environment or {}),
        }
        children = stack.enter_context(ChildProcesses(folder, environment))
        client = command_client(settings)
        try:
            play = QueueStage(server, settings, client, children, folder)
            play.incarnation = await play.scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
            yield play
        finally:
            await client.aclose()
