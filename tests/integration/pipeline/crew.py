"""A run, and members of the queue that live in the test's own process: real consumers on a real server, with work that the test holds
in its hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from pipeline import codec
from pipeline.attempts import End, HandedOff, JobControl, Settled, Slots, Work
from pipeline.keys import Keys, shard_of
from pipeline.messages import JobTemplate, Outcome, Settlement, Stage
from pipeline.process import Member, Shutdown, serve_stage
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from pipeline.testing import QueueAudit, a_template, a_unit, wait_until

BODY = b"\x00" + bytes(16)
DONE = Settled(Settlement(outcome=Outcome.OK, reward=1.0, stop="finished"), BODY, "eval")


async def passes(control: JobControl) -> End:
    """Work that is done at once: the job goes on, and ends after EVAL."""
    return DONE if control.held.stream.startswith("s:eval") else HandedOff(BODY)


async def ends(control: JobControl) -> End:
    """Work that ends the job in whatever stage it is."""
    return DONE


@dataclass
class HeldWork:
    """Work that goes on until the test lets it end.

    Args:
        end: what it comes to.
    """

    end: Callable[[JobControl], End] = lambda control: DONE
    running: dict[str, JobControl] = field(default_factory=dict)
    """By job, what works now."""
    begun: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    most: int = 0
    """Most that ever worked at once."""
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, control: JobControl) -> End:
        job = control.held.job
        self.begun.append(job)
        self.running[job] = control
        self.most = max(self.most, len(self.running))
        control.progress(600)
        try:
            control.gate()
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.interrupted.append(job)
            raise
        finally:
            self.running.pop(job, None)
        return self.end(control)


@dataclass
class Running:
    """A member at work."""

    member: Member
    shutdown: Shutdown
    task: asyncio.Task[bool]

    async def stop(self, *, hurry: bool = False, within_s: float = 10.0) -> bool:
        """SIGTERM, and with `hurry` a second one; what `serve_stage` answered."""
        self.shutdown.stop.set()
        if hurry:
            self.shutdown.hurry.set()
        async with asyncio.timeout(within_s):
            return await self.task

    def die(self) -> None:
        """Its tasks are cancelled wherever they are; what it held goes back or is left to its leases."""
        self.task.cancel()


class Crew:
    """The queue of a test: a trainer's hand on one side, members on the other."""

    def __init__(self, settings: QueueSettings, client: AsyncClient) -> None:
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.audit = QueueAudit(client, self.keys)
        self.units: list[Unit] = []
        self.incarnation = 0
        self.members: list[Running] = []
        self._stack = AsyncExitStack()

    # ---- the trainer

    async def connect(self, run: str = "run1", *, nonce: str = "trainer") -> None:
        """Takes the run."""
        scripts = self._scripts_of(run)
        self.incarnation = await scripts.connect_run(run, nonce=nonce, ttl_s=3600)

    async def accept(
        self, *units: Unit, template: JobTemplate | None = None, template_body: bytes | None = None, run: str = "run1"
    ) -> None:
        """Puts units into the queue of their run, for which `QueueAudit` answers afterwards."""
        template = template or a_template()
        body = codec.encode(template) if template_body is None else template_body
        name = f"t{len(self.units)}"
        await self._scripts_of(run).accept(run, self.incarnation, template, name, body, units, max_waiting=10**6, window=256)
        self.units += units

    async def add(self, count: int, *, start: int = 0, template: JobTemplate | None = None, run: str = "run1") -> list[str]:
        """Single jobs; their ids."""
        units = [a_unit(run, f"e0-i{number}") for number in range(start, start + count)]
        await self.accept(*units, template=template, run=run)
        return [unit.id for unit in units]

    # ---- members

    def start(
        self,
        stage: Stage,
        work: Work,
        *,
        node: str = "n1",
        slots: int = 4,
        grace_s: float = 5.0,
        epoch: str = "e1",
        url: str = "",
        capabilities: Sequence[str] = ("none",),
        settings: QueueSettings | None = None,
        room: Slots | None = None,
    ) -> Running:
        """A member begins to serve.

        Args:
            room: its slots, where they change.
            url: its way to Redis; default: the direct one.
        """
        settings = settings or self.settings
        if url:
            settings = settings.model_copy(update={"redis_url": url})
        client = command_client(settings)
        self._stack.push_async_callback(client.aclose)
        member = Member(stage=stage, node=node, slots=slots, grace_s=grace_s, epoch=epoch, capabilities=tuple(capabilities))
        shutdown = Shutdown()
        task = asyncio.create_task(serve_stage(settings, member, client, shutdown, lambda _, __: work, slots=room), name=member.consumer)
        running = Running(member, shutdown, task)
        self.members.append(running)
        return running

    def start_stages(self, work: Work = passes, *, but: Sequence[Stage] = (), node: str = "n1", slots: int = 8) -> None:
        """A member of each stage, `but` some."""
        for stage in Stage:
            if stage not in but:
                self.start(stage, work, node=node, slots=slots)

    # ---- what can be seen

    async def has_name(self, member: Running) -> None:
        """Until it holds its name."""

        async def held() -> bool:
            return (await self.audit.hash(self.keys.worker(member.member.consumer))).get("boot") == member.member.boot

        await wait_until(held, f"{member.member.consumer} holds its name")

    async def results(self, count: int = 0, *, run: str = "run1", timeout_s: float = 10.0) -> list[dict[str, str]]:
        """Terminal records, once there are so many."""
        keys = self._scripts_of(run).keys

        async def enough() -> bool:
            return int(await ask(self.client, "XLEN", keys.results(run))) >= count

        await wait_until(enough, f"{count} results of {run}", timeout_s=timeout_s)
        return await QueueAudit(self.client, keys).results(run)

    async def job(self, job: str) -> dict[str, str]:
        """The hash of a job."""
        return await self.audit.job(job)

    async def in_state(self, state: str, count: int) -> None:
        """Until so many jobs of the run are in that state."""

        async def enough() -> bool:
            states = [(await self.audit.job(unit.id)).get("st") for unit in self.units]
            return states.count(state) == count

        await wait_until(enough, f"{count} jobs are {state}")

    async def pending(self) -> list[str]:
        """Entries that are delivered to somebody."""
        return [entry.id for entry in await self.audit.stage_entries() if entry.pending_of]

    async def leave(self) -> None:
        """The end of the test: all members die at once."""
        for member in self.members:
            member.die()
        await asyncio.gather(*(member.task for member in self.members), return_exceptions=True)
        await self._stack.aclose()

    def _scripts_of(self, run: str) -> Scripts:
        return Scripts(self.client, Keys.of_shard(self.settings.namespace, shard_of(run, self.settings.shards)))
