"""The exporter: what Redis says of the whole pipeline, for Prometheus. What it promises is in docs/adr/0032-metrics.md.

a scrape ──▶ leader? ──▶ a look that is younger than GOOD_S, or a new one ──▶ text
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.metrics.balance import ShardBalance, read_balance
from ops.metrics.definitions import OF_THE_QUEUE, Families
from ops.metrics.leadership import Leadership
from ops.metrics.listener import listening
from ops.metrics.queue import say_facts, say_judgement
from ops.metrics.settings import MetricsSettings
from ops.metrics.targets import TargetFile
from ops.node.beside import beside
from ops.status.facts import Facts, read_facts
from ops.status.judging import judge
from ops.status.reach import PATIENCE_S, reached, settings_of_server, while_it_answers
from ops.status.trouble import Unreached
from ops.status.verdict import unreached
from pipeline.keys import Keys, shard_of
from pipeline.process import Shutdown, software_version
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings

GOOD_S = 2.0
"""A look answers all scrapes of so long."""


async def serve(
    metrics: MetricsSettings, queue: QueueSettings, shutdown: Shutdown, announce: Callable[[str, Path | None, str], None]
) -> None:
    """Answers scrapes until it is shut down.

    Args:
        announce: told the address and the target file once it listens, and where another exporter reads the queue; empty = none does.

    Raises:
        InvalidRequest: it cannot listen, or write its target file.
    """
    exporter = Exporter(queue)
    async with listening(metrics, metrics.port, exporter.text, field="metrics.port") as url:
        exporter.leadership.url = url
        await exporter.leadership.look()
        name = f"{_machine()}-{metrics.port}" if metrics.port else _machine()
        target = TargetFile(metrics, queue.namespace, "exporter", name)
        target.write(url)
        announce(url, target.path, exporter.leadership.leader_url)
        async with beside(exporter.leadership.run()):
            await shutdown.stop.wait()
        target.remove()
        await exporter.leadership.leave()


class Exporter:
    """What one exporter answers.

    Args:
        patience_s: what a connection to Redis and a reply each may take.
    """

    def __init__(self, queue: QueueSettings, *, patience_s: float = PATIENCE_S) -> None:
        self._queue, self._patience_s = queue, patience_s
        self.leadership = Leadership(queue, "", patience_s=patience_s)
        self._looking = asyncio.Lock()
        self._found = b""
        self._found_s = -GOOD_S
        self._failures = 0

    async def text(self) -> bytes:
        """As it is scraped."""
        async with self._looking:
            if time.monotonic() - self._found_s >= GOOD_S:
                families = Families(OF_THE_QUEUE)
                await self._say(families)
                self._found, self._found_s = families.text(), time.monotonic()
            return self._found

    async def _say(self, families: Families) -> None:
        part = self.leadership
        is_up, takes_writes = part.is_up, part.takes_writes
        if part.leads or not part.is_up:
            began_s = time.monotonic()
            try:
                facts, shards = await self._look()
            except Unreached as error:
                is_up, takes_writes = False, None
                self._failures += 1
                say_judgement(families, unreached(error))
            else:
                is_up = True
                if facts.redis is not None and (facts.redis.aof_fails or facts.redis.snapshot_fails):
                    takes_writes = False
                if part.leads:
                    say_judgement(families, judge(facts))
                    say_facts(families, facts, shards)
            families.say("rollstream_look_seconds", time.monotonic() - began_s)
        families.say("rollstream_exporter_info", 1, software_version())
        families.say("rollstream_exporter_leader", part.leads and is_up)
        families.say("rollstream_redis_up", is_up)
        families.say("rollstream_redis_writable", takes_writes)
        families.say("rollstream_look_failures_total", self._failures)

    async def _look(self) -> tuple[Facts, Sequence[ShardBalance]]:
        server, patience_s = settings_of_server(self._queue), self._patience_s

        async def look() -> tuple[Facts, Sequence[ShardBalance]]:
            facts = await read_facts(client, server)
            return facts, await _balances(client, server, facts)

        async with reached(server, patience_s=patience_s) as client:
            return await while_it_answers(client, look, server, patience_s=patience_s)


async def _balances(client: AsyncClient, queue: QueueSettings, facts: Facts) -> list[ShardBalance]:
    streams = sorted({stream.short for stream in facts.streams})
    runs = [run.look.name for run in facts.runs]
    return [
        await read_balance(
            client,
            Keys.of_shard(queue.namespace, shard),
            [run for run in runs if shard_of(run, queue.shards) == shard],
            streams,
        )
        for shard in range(queue.shards)
    ]


def _machine() -> str:
    return socket.gethostname().split(".")[0] or "localhost"
