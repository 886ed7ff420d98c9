"""A process as a member of the queue: it takes its name on every shard, serves one stage there, and leaves in two steps.

    take the name -> consumer loop and janitor on each shard -> drain -> give the name up

A predecessor that died on this machine gives its name up at once, any other within a lease. The slots of a process are shared by its
shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import structlog

from pipeline.attempts import Slots, Work
from pipeline.cancel import CancelMessage
from pipeline.consumer import Consumer
from pipeline.errors import BrokerError, BrokerUnreachable
from pipeline.janitor import Janitor
from pipeline.keys import Keys
from pipeline.layout import check_layout
from pipeline.messages import Stage
from pipeline.name_lock import NameLock
from pipeline.redis_client import AsyncClient, reader_client
from pipeline.scripts import NameHolder, Scripts
from pipeline.scripts.calls import LaneReader
from pipeline.settings import QueueSettings
from pipeline.streams import BLOCK_S, StreamReader

log = structlog.get_logger(__name__)

PARENT_FD = "ROLLSTREAM_PARENT_FD"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
ORPHAN_PATIENCE_S = 30.0
"""Longer than a clean leave takes when Redis is frozen."""
SAME_SIGNAL_S = 1.0
"""A SIGTERM to a launcher within so long of the first is that one, told again."""
EXIT_ORPHAN = 4
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Who a process is in the queue."""

    stage: Stage
    node: str
    slots: int
    index: int = 0
    """Which of the stage's processes on this node."""
    epoch: str = "none"
    """Since when the environments of this node exist."""
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    grace_s: float = 30.0
    capabilities: tuple[str, ...] = ("none",)
    lock_folder: Path | None = None
    """Where processes of this machine lock their names, so that a successor need not wait; None = nowhere."""

    @property
    def consumer(self) -> str:
        """The stable name."""
        return f"{self.stage.value}-{self.node}-{self.index}"

    @property
    def holder(self) -> NameHolder:
        """This process, as what holds that name."""
        return NameHolder(self.node, self.slots, os.getpid(), software_version())

    @property
    def lane(self) -> LaneReader | None:
        """What it reads of its node's lanes: RUN its own; INIT one too, where sandboxes have walls and so may have images."""
        if self.stage is Stage.RUN or (self.stage is Stage.INIT and set(self.capabilities) != {"none"}):
            return LaneReader(self.stage, self.consumer, self.slots, self.capabilities)
        return None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The two steps of leaving."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Claim nothing more, finish what runs."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Hand back what still runs."""

    def on_signals(self, *, launcher: bool = False) -> None:
        """First SIGTERM or SIGINT: `stop`. Second: `hurry`.

        Args:
            launcher: of a node. SIGHUP is such a signal, too, unless it was ignored when the process began, as under `nohup`. Who preempts
                a Slurm job says it three times within some ten milliseconds: SIGTERM to its tasks, once for the step and once for the
                job, and to the batch shell, which tells the tasks by SIGUSR1, as `srun` passes that on and no SIGTERM (ops/slurm). So a
                SIGTERM so soon after the first is the same one, and SIGUSR1 is `stop` and nothing more, before and after others.
        """
        loop = asyncio.get_running_loop()
        told_s: list[float] = []

        def on_signal(number: int) -> None:
            now_s = time.monotonic()
            if launcher and number == signal.SIGTERM and told_s and now_s - told_s[0] < SAME_SIGNAL_S:
                return
            if told_s:
                self.hurry.set()
            told_s.append(now_s)
            self.stop.set()

        for number in (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if launcher else ())):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, on_signal, number)
        if launcher:
            loop.add_signal_handler(signal.SIGUSR1, self.stop.set)

    def on_parent_exit(self, *, patience_s: float = ORPHAN_PATIENCE_S) -> None:
        """Leaves at once when the process that started this one is gone, however it went.

        The parent passes the reading end of a pipe that only it can write to, as `ROLLSTREAM_PARENT_FD`: end of file is its end. A thread
        waits for it, so that work which blocks the event loop, or does not let itself be interrupted, cannot keep an orphan alive: after
        `patience_s` the process ends without having left.
        """
        word = os.environ.get(PARENT_FD, "")
        if not word:
            return
        fd, loop = int(word), asyncio.get_running_loop()
        os.set_inheritable(fd, False)

        def on_end() -> None:
            self.stop.set()
            self.hurry.set()
            # last: the parent may have been the reader of what is written here
            log.warning("parent_gone", what="the process that started this one has ended; leaving")

        def watch() -> None:
            while os.read(fd, 1):
                continue
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is leaving already
                loop.call_soon_threadsafe(on_end)
            time.sleep(patience_s)
            os._exit(EXIT_ORPHAN)

        threading.Thread(target=watch, name="parent", daemon=True).start()


def software_version() -> str:
    """Version of this installation, for people who look at mixed fleets."""
    try:
        return version("rollstream")
    except PackageNotFoundError:
        return "source"


async def serve_stage(
    queue: QueueSettings,
    member: Member,
    client: AsyncClient,
    shutdown: Shutdown,
    work_of: Callable[[Keys, Scripts], Work],
    on_cancel: Callable[[CancelMessage], None] | None = None,
    *,
    slots: Slots | None = None,
) -> bool:
    """Serves a stage on every shard until it is shut down, then drains. False when another process has taken the name.

    Args:
        client: for commands (`redis_client.command_client`).
        work_of: makes the work for one shard.
        on_cancel: told of each cancel in the queue.
        slots: room for jobs; default: the member's, all of the time.

    Raises:
        BrokerMisused: a stage stream is of another type, the namespace has another layout, or Redis refuses this user.
    """
    slots = slots or Slots(member.slots)
    try:
        await until_reached(lambda: check_layout(client, queue), shutdown.stop)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            lock: NameLock | None = None
            if member.lock_folder is not None:
                lock = stack.enter_context(NameLock(member.lock_folder, f"{queue.namespace}.{member.consumer}", member.boot))
            shards = [
                tasks.create_task(
                    _serve_shard(
                        queue, member, Keys.of_shard(queue.namespace, shard), client, slots, shutdown, work_of, on_cancel, stack, lock
                    ),
                    name=f"{member.consumer}-shard-{shard}",
                )
                for shard in range(queue.shards)
            ]
            kept = [await shard for shard in shards]
    except StoppedWhileWaiting:
        return True
    except BaseExceptionGroup as group:
        raise first_cause(group) from group
    return all(kept)


async def _serve_shard(
    queue: QueueSettings,
    member: Member,
    keys: Keys,
    client: AsyncClient,
    slots: Slots,
    shutdown: Shutdown,
    work_of: Callable[[Keys, Scripts], Work],
    on_cancel: Callable[[CancelMessage], None] | None,
    stack: AsyncExitStack,
    lock: NameLock | None,
) -> bool:
    scripts = Scripts(client, keys)
    lock_ms = int(queue.lease_s * 1000)
    try:
        await _take_name(scripts, member, lock_ms, lock, shutdown.stop)
        if member.lane is not None:
            # before the lane exists: a lane without a beat is swept
            await until_reached(
                lambda: scripts.beat_node(
                    member.node, member.epoch, live_ms=lock_ms, reads_lane=member.stage is Stage.RUN, lane=member.lane
                ),
                shutdown.stop,
            )
    except StoppedWhileWaiting:
        return True
    reader_connection, tail_connection = reader_client(queue, block_s=BLOCK_S), reader_client(queue, block_s=BLOCK_S)
    stack.push_async_callback(reader_connection.aclose)
    stack.push_async_callback(tail_connection.aclose)
    reader = StreamReader(reader_connection, client, keys, member.stage, member.consumer, _streams(keys, member))
    consumer = Consumer(
        settings=queue,
        keys=keys,
        scripts=scripts,
        stage=member.stage,
        consumer=member.consumer,
        boot=member.boot,
        slots=slots,
        reader=reader,
        tail_client=tail_connection,
        work=work_of(keys, scripts),
        holder=member.holder,
        epoch=member.epoch,
        lane=member.lane,
        on_cancel=on_cancel,
    )
    janitor = Janitor(client, scripts, keys, queue, who=f"{member.consumer}#{member.boot}")
    janitor_stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(janitor.run(janitor_stop), name="janitor")
        try:
            await consumer.run(shutdown.stop, hurry=shutdown.hurry, grace_s=member.grace_s)
        finally:
            janitor_stop.set()
    if not consumer.usurped:
        await _leave(scripts, member, [keys.short(stream) for stream in reader.streams])
    log.info("shard_left", shard=keys.tag, **{name: getattr(consumer.statistics, name) for name in consumer.statistics.__slots__})
    return not consumer.usurped


async def _leave(scripts: Scripts, member: Member, streams: Sequence[str]) -> None:
    """Gives up the name and the consumers; without Redis they lapse by themselves."""
    try:
        if member.lane is not None:
            await scripts.beat_node(member.node, member.epoch, live_ms=1, reads_lane=False, leaving=True, lane=member.lane)
        await scripts.drop_name(member.consumer, member.boot)
        for stream in streams:
            await scripts.drop_consumer(stream, member.stage, member.consumer)
    except BrokerError as error:
        log.warning("name_not_given_up", error=str(error))


def _streams(keys: Keys, member: Member) -> list[str]:
    """What a member reads, the lane first: what waits there has an environment, or an image, that others do not have."""
    stage = member.stage
    lane = [] if member.lane is None else [keys.stage_stream(stage, node=member.node)]
    if stage is Stage.INIT:
        return [*lane, *(keys.stage_stream(stage, capability=name) for name in member.capabilities)]
    return [*lane, keys.stage_stream(stage)]


class StoppedWhileWaiting(Exception):
    """Told to stop before what was waited for came."""


async def until_reached(call: Callable[[], Awaitable[Reply]], stop: asyncio.Event) -> Reply:
    """Calls until Redis answers: a process that starts during an outage waits for its end, as one that runs does.

    Raises:
        StoppedWhileWaiting: `stop` was set.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except BrokerUnreachable as error:
            log.warning("waiting_for_redis", error=str(error), pause_s=round(pause_s, 2))
            await _pause(pause_s, stop)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


async def _take_name(scripts: Scripts, member: Member, lock_ms: int, lock: NameLock | None, stop: asyncio.Event) -> None:
    """Takes the stable name: at once from a predecessor that is known to be dead, else when its lock in Redis lapses.

    Raises:
        StoppedWhileWaiting: `stop` was set.
    """
    while True:
        take = partial(
            scripts.take_name,
            member.stage,
            member.consumer,
            member.boot,
            member.holder,
            lock_ms=lock_ms,
            dead="" if lock is None else _dead_boot(lock),
        )
        taken = await until_reached(take, stop)
        if taken is None:
            return
        boot, lapses_s = taken
        log.warning("name_is_taken", consumer=member.consumer, by_boot=boot, lapses_s=round(lapses_s, 1), what="waiting for it to lapse")
        await _pause(max(0.05, lapses_s + 0.05), stop)


def _dead_boot(lock: NameLock) -> str:
    try:
        return lock.dead_boot()
    except OSError as error:
        log.warning("name_lock_unusable", error=str(error), what="the name of a dead predecessor is waited for")
        return ""


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
    raise StoppedWhileWaiting


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What people and exit codes want to know of a group of tasks that failed: the error of the first one."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
