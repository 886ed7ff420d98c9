"""Nodes of a simulated fleet in one process: `python -m ops.bench.scaling_host FIRST NODES SLOTS TURNS TURN_S DELTA_BYTES NOTES`.

Each node is three members of the queue (INIT, RUN, EVAL) with claims, leases, renewals, janitors and settling as any worker has them, and
what a RUN worker says to the pool: assignments and their renewal, the begin and end of each model call, looks at servers. What is simulated
is the work itself: a turn sleeps and journals a delta, no model is called and no token is made. Turns last `TURN_S` in the mean, by chance
shorter or longer, so that slots do not come free in waves.

Lines of the notes, for whoever measures: `claim MS`, from an entry in EVAL's stream, where slots are free, to its work; `gap MS`, from the
end of the work in a RUN slot to the next work there, with jobs waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.attempts import End, HandedOff, JobControl, Settled
from pipeline.event_loop import run_process
from pipeline.inference_pool import Assignment, Begun, Call, EndedCall, InferencePool, PoolLooks, Seen, Wanted
from pipeline.keys import Keys
from pipeline.logs import configure_logs
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.process import Member, Shutdown, serve_stage
from pipeline.redis_client import AsyncClient, command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from workers.stages.bodies import Bodies
from workers.stages.model_servers import ModelServers
from workers.stages.pool_keeper import ROUND_S

OTHER_SLOTS = 16
"""Of INIT and EVAL on a node: their work is done at once."""
ENVIRONMENT = b"\x00" + bytes(255)
GRADE = b"\x00" + bytes(511)
PROGRESS_S = 60.0
SERVER_WAIT_S = 0.2
"""Between two questions for a server, until the first look at them was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What a RUN job does."""

    turns: int
    turn_s: float
    delta_bytes: int
    """Of the journal, a turn; the trajectory is as long as all of them."""


class Notes:
    """Lines that all processes append to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, ms: float) -> None:
        """One measurement."""
        os.write(self._file, f"{what} {ms:.3f}\n".encode())


class SimulatedWork:
    """The work of one stage on one node."""

    def __init__(self, stage: Stage, bodies: Bodies, turns: Turns, notes: Notes, servers: ModelServers) -> None:
        self._stage = stage
        self._bodies = bodies
        self._turns = turns
        self._notes = notes
        self._servers = servers
        self._freed: deque[float] = deque()

    async def __call__(self, control: JobControl) -> End:
        claim, begun = control.begun.claim, control.begun
        await self._bodies.spec(begun)
        control.gate()
        if self._stage is Stage.INIT:
            return HandedOff(ENVIRONMENT)
        if self._stage is Stage.RUN:
            if self._freed:
                self._notes.note("gap", (time.monotonic() - self._freed.popleft()) * 1000)
            try:
                return await self._act(control)
            finally:
                self._freed.append(time.monotonic())
        self._notes.note("claim", time.time() * 1000 - int(claim.entry.partition("-")[0]))
        await self._bodies.get(self._bodies.keys.body(claim.job, begun.run_attempt, Stage.RUN.value))
        settlement = Settlement(
            outcome=Outcome.OK,
            reward=float(claim.member % 2),
            stop="finished",
            sampled_tokens=100,
            total_tokens=200,
            turns=self._turns.turns,
        )
        return Settled(settlement, GRADE, Stage.EVAL.value)

    async def _act(self, control: JobControl) -> End:
        claim = control.begun.claim
        await self._bodies.get(self._bodies.keys.body(claim.job, control.begun.init_attempt, Stage.INIT.value))
        delta = b"\x00" + random.randbytes(self._turns.delta_bytes - 1)
        async with self._server(self._servers, control) as assignment:
            for index in range(self._turns.turns):
                control.gate()
                call = Call(assignment, f"{claim.job}.{control.begun.attempt}.{index}")
                if not isinstance(await self._servers.calls.begin(call), Begun):
                    raise RuntimeError("a call of a simulated job was refused: nothing pauses its run")
                control.progress(PROGRESS_S)
                await asyncio.sleep(self._turns.turn_s * random.uniform(0.5, 1.5))
                self._servers.calls.end(EndedCall(call))
                await control.journal(index, delta, 100)
        return HandedOff(delta * self._turns.turns)

    @asynccontextmanager
    async def _server(self, servers: ModelServers, control: JobControl) -> AsyncIterator[Assignment]:
        claim = control.begun.claim
        wanted = Wanted(job=claim.job, attempt=control.begun.attempt, group=claim.group)
        while not isinstance(found := await servers.assign(claim.run, wanted), Assignment):
            control.progress(PROGRESS_S)
            await asyncio.sleep(SERVER_WAIT_S)
        try:
            yield found
        finally:
            await servers.release(found)


async def look_at_servers(looks: PoolLooks) -> None:
    """What a RUN worker's keeper says of servers; all of these are well."""
    while True:
        for look in await looks.due():
            await looks.looked(look, Seen(alive=True))
        await asyncio.sleep(ROUND_S)


async def serve_node(name: str, slots: int, turns: Turns, notes: Notes, queue: QueueSettings, shutdown: Shutdown) -> None:
    """One node, until shut down."""
    async with AsyncExitStack() as stack:
        client: AsyncClient = command_client(queue)
        stack.push_async_callback(client.aclose)
        servers = await stack.enter_async_context(
            ModelServers(InferencePool(client, queue.namespace, lease_s=queue.lease_s), lease_s=queue.lease_s)
        )

        def work_of(stage: Stage, keys: Keys, _: Scripts) -> SimulatedWork:
            return SimulatedWork(stage, Bodies(client, keys), turns, notes, servers)

        looking = asyncio.create_task(look_at_servers(PoolLooks(client, queue.namespace)), name=f"looks-{name}")
        async with asyncio.TaskGroup() as tasks:
            for stage in Stage:
                member = Member(stage=stage, node=name, slots=slots if stage is Stage.RUN else OTHER_SLOTS, grace_s=0.1)
                tasks.create_task(
                    serve_stage(queue, member, client, shutdown, partial(work_of, stage)),
                    name=f"{stage.value}-{name}",
                )
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


async def main(first: int, nodes: int, slots: int, turns: Turns, notes: Notes) -> None:
    """All nodes of this process."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    queue = QueueSettings.load()
    async with asyncio.TaskGroup() as tasks:
        for number in range(first, first + nodes):
            tasks.create_task(serve_node(f"node{number}", slots, turns, notes, queue, shutdown), name=f"node{number}")


if __name__ == "__main__":
    configure_logs(as_json=True, level="warning")
    first_, nodes_, slots_, turns_, turn_s_, delta_, notes_ = sys.argv[1:]
    asked = Turns(turns=int(turns_), turn_s=float(turn_s_), delta_bytes=int(delta_))
    run_process(main(int(first_), int(nodes_), int(slots_), asked, Notes(Path(notes_))))
