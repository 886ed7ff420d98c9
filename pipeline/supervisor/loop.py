"""The supervisor process: woken by the reward stream, at start and each second it brings the ledgers up to date.

Invariants:
  1. `z:closed` and the keys of each run are the record; the reward stream only wakes. A lost, trimmed or doubled event costs a period.
  2. Any number of supervisors may run. They share the events (one consumer group) and may meet on a run; the scripts let one of them act.
  3. The read is never cancelled. It is short, and a flag stops the loop.
  4. Many events are one round: between two reads there is a pause, in which events gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import redis
import structlog

from pipeline.errors import BrokerError, BrokerMisused, BrokerUnreachable
from pipeline.janitor import Janitor
from pipeline.keys import Keys
from pipeline.layout import check_layout
from pipeline.process import StoppedWhileWaiting, first_cause, until_reached
from pipeline.redis_client import AsyncClient, ask, command_client, reader_client
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.informative import Policy
from pipeline.supervisor.installed_policies import load_policies
from pipeline.supervisor.loading import LedgerReader

log = structlog.get_logger(__name__)

GROUP = "supervisor"
PERIOD_S = 1.0
"""A lost event costs this long."""
GATHER_S = 0.01
"""Pause between two reads. At thousands of jobs a second it makes a hundred reads of them."""
EVENTS_A_READ = 2000
ERROR_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0


class Supervisor:
    """One supervisor process, for all shards.

    Args:
        settings: where the queue is.
        name: stable name of this process among the supervisors.
        period_s: how often every run is looked at without being woken.
        policies: informativeness policies by name; None = the built-in ones and those that are installed.
    """

    def __init__(
        self, settings: QueueSettings, *, name: str, period_s: float = PERIOD_S, policies: Mapping[str, Policy] | None = None
    ) -> None:
        self._policies = load_policies() if policies is None else policies
        self._settings = settings
        self._name = name
        self._period_s = period_s

    async def run(self, stop: asyncio.Event) -> None:
        """Supervises until `stop` is set; an unreachable Redis is waited for.

        Raises:
            BrokerMisused: the reward stream is no stream when it starts, or the namespace has another layout.
        """
        async with AsyncExitStack() as clients:
            commands = await clients.enter_async_context(aclosing(command_client(self._settings)))
            try:
                await until_reached(lambda: check_layout(commands, self._settings), stop)
            except StoppedWhileWaiting:
                return
            loops: list[ShardLoop] = []
            janitors: list[Janitor] = []
            for shard in range(self._settings.shards):
                reader = await clients.enter_async_context(aclosing(reader_client(self._settings, block_s=self._period_s)))
                keys = Keys.of_shard(self._settings.namespace, shard)
                ledger = LedgerReader(commands, keys, max_unread=self._settings.max_unread)
                drain = Drain(ledger, StepScripts(commands, keys), window=self._settings.admit_window, policies=self._policies)
                loops.append(ShardLoop(reader, commands, keys, drain, name=self._name, period_s=self._period_s))
                # with every worker gone somebody must still promote retries and end what is past its deadline
                janitors.append(Janitor(commands, Scripts(commands, keys), keys, self._settings, who=f"supervisor-{self._name}"))
            try:
                async with asyncio.TaskGroup() as tasks:
                    for shard, loop in enumerate(loops):
                        tasks.create_task(loop.run(stop), name=f"supervisor-{shard}")
                    for shard, janitor in enumerate(janitors):
                        tasks.create_task(janitor.run(stop), name=f"janitor-{shard}")
            except BaseExceptionGroup as group:
                raise first_cause(group) from group


class ShardLoop:
    """The loop of one supervisor on one shard.

    Args:
        reader: a reader client of its own.
        commands: a command client.
    """

    def __init__(self, reader: AsyncClient, commands: AsyncClient, keys: Keys, drain: Drain, *, name: str, period_s: float) -> None:
        self._reader = reader
        self._commands = commands
        self._stream = keys.reward
        self._drain = drain
        self._name = name
        self._period_s = period_s
        self._clock = asyncio.get_running_loop().time

    async def run(self, stop: asyncio.Event) -> None:
        """Supervises one shard until `stop` is set."""
        pause_s = ERROR_PAUSE_S
        has_group = was_there = False
        due_s = self._clock()
        while not stop.is_set():
            try:
                woken: set[str] = set()
                try:
                    if not has_group:
                        await self._make_group()
                        has_group, was_there, due_s = True, True, self._clock()
                    woken = set() if self._clock() >= due_s else await self._wait(due_s - self._clock())
                except BrokerMisused as error:
                    if not was_there:
                        raise BrokerMisused(
                            f"{self._stream} is not a stream: something else wrote that key; rename or delete it"
                        ) from error
                    # written over meanwhile: its events are wake-ups only, so go on by the clock
                    if has_group:
                        log.error("reward_stream_unusable", stream=self._stream, error=str(error))
                    has_group = False
                    await _pause(stop, max(0.0, due_s - self._clock()))
                every_run = self._clock() >= due_s
                if every_run:
                    due_s = self._clock() + self._period_s
                if woken or every_run:
                    await self._drain.round(woken, every_run=every_run)
                pause_s = ERROR_PAUSE_S
                await _pause(stop, GATHER_S)
            except BrokerUnreachable as error:
                log.warning("supervisor_waits_for_redis", error=str(error), pause_s=pause_s)
                await _pause(stop, pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                    raise
                log.warning("group_gone", stream=self._stream, pause_s=pause_s)
                has_group = False
                await _pause(stop, pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)
        await self._leave()

    async def _wait(self, at_most_s: float) -> set[str]:
        """Runs that something happened to, from the events since the last read; empty when nothing did in time.

        A job's end alone changes nothing that a rule looks at before its group closes.
        """
        reply = await ask(
            self._reader,
            *("XREADGROUP", "GROUP", GROUP, self._name, "COUNT", EVENTS_A_READ),
            *("BLOCK", max(1, int(min(at_most_s, self._period_s) * 1000)), "NOACK", "STREAMS", self._stream, ">"),
        )
        woken: set[str] = set()
        for _, entries in reply or ():
            for _, fields in entries:
                kind, run = _kind_and_run(fields or ())
                if run and kind != b"job":
                    woken.add(run.decode(errors="replace"))
        return woken

    async def _make_group(self) -> None:
        try:
            await ask(self._commands, "XGROUP", "CREATE", self._stream, GROUP, "$", "MKSTREAM")
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _leave(self) -> None:
        try:
            await ask(self._commands, "XGROUP", "DELCONSUMER", self._stream, GROUP, self._name)
        except (BrokerError, redis.ResponseError) as error:
            log.info("consumer_left_behind", stream=self._stream, consumer=self._name, error=str(error))


def _kind_and_run(fields: Sequence[Any] | dict[bytes, bytes]) -> tuple[bytes, bytes]:
    if isinstance(fields, dict):
        return fields.get(b"kind", b""), fields.get(b"run", b"")
    kind = run = b""
    for at in range(0, len(fields) - 1, 2):
        if fields[at] == b"kind":
            kind = fields[at + 1]
        elif fields[at] == b"run":
            run = fields[at + 1]
            break
    return kind, run


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


__all__ = ["GROUP", "ShardLoop", "Supervisor"]
