"""One chaos campaign: jobs go in, processes and connections are broken by plan, and at the end everything is counted.

What it breaks, in the order of its plan, while jobs run:

    kills       SIGKILL of a worker at a random moment; it comes back under the same name
    failpoints  a worker that dies right after one script call, each place once; after some only a janitor or a worker that leaves can die
    freezes     SIGSTOP of a worker until another has its name, then SIGCONT
    restarts    SIGKILL of the server (append-only file `always`), started again
    outage      no connection for two leases, then healed
    losses      a share of replies cut on the wire, all the time
    raw         entries that are no jobs of ours

What must hold afterwards is what `pipeline.testing.queue_audit` checks, and that the outage cost no attempt.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline import codec
from pipeline.errors import BrokerError, QueueFull
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.keys import Keys, shard_of
from pipeline.messages import JobTemplate, Prompt, Stage
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import new_nonce
from pipeline.settings import QueueSettings
from pipeline.testing.all_stages import EXIT_USURPED, process_of
from pipeline.testing.lossy_proxy import LossyProxy
from pipeline.testing.queue_audit import QueueAudit
from pipeline.testing.servers import PrivateServer, ServerKind
from pipeline.testing.wait import wait_until

WORKER_FAILPOINTS = (
    "take_name",
    "ensure_group",
    "begin",
    "journal",
    "hand_off_init",
    "hand_off_run",
    "settle_init",
    "settle_run",
    "settle_eval",
    "give_up",
    "admit",
    "recover",
    "promote",
    "expire_deadlines",
    "sweep_lane",
    "close_gone_runs",
    "reconcile",
    "reject",
    "drop_name",
    "drop_consumer",
)
"""After which script calls a worker process is killed."""
SELDOM_FAILPOINTS = frozenset(
    ("settle_init", "settle_run", "admit", "recover", "promote", "expire_deadlines", "sweep_lane", "close_gone_runs", "reconcile")
)
"""Passed by the one process whose janitor acts, or by few jobs: all processes are armed, one dies."""
LEAVING_FAILPOINTS = frozenset(("drop_name", "drop_consumer"))
"""Passed by a process that was told to stop."""
PATIENCE_S = 150.0
"""How long something is waited for that takes a second on a machine with nothing else to do."""
GROUP = 8
POLL_S = 0.05
FEED_EVERY_S = 0.25
MOST_OPEN = 512
"""Open jobs of a run above which none are added: a slow machine has the same campaign, not a longer queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to break, and how much."""

    jobs: int = 800
    workers: int = 4
    slots: int = 8
    kills: int = 25
    kill_every_s: float = 0.35
    failpoints: Sequence[str] = WORKER_FAILPOINTS
    freezes: int = 1
    restarts: int = 0
    outage: bool = False
    lost_replies: float = 0.01
    raw_entries: int = 3
    runs: int = 1
    """With more than one, each is on a shard of its own and the first floods: it has three quarters of the jobs."""
    lease_s: float = 1.0
    seed: int = 0
    timeout_s: float = 240.0


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was found."""

    faults: list[str] = field(default_factory=list)
    """Empty = everything held."""
    jobs: int = 0
    kills: int = 0
    restarts: int = 0
    replies_cut: int = 0
    usurped: int = 0
    """Frozen workers that woke up, found their name taken, and left."""
    failpoints: tuple[str, ...] = ()
    """That fired."""
    lost_attempts: int = 0
    lost_by_outage: int = 0
    seconds: float = 0.0
    small_run_done_s: float = 0.0
    """With several runs: when the last run that does not flood was done."""


@dataclass(slots=True)
class _Run:
    name: str
    keys: Keys
    units: list[Unit] = field(default_factory=list)
    incarnation: int = 0
    done_s: float = 0.0


class Campaign:
    """Runs one plan on one server."""

    def __init__(self, plan: Plan, kind: ServerKind, say: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan
        self._kind = kind
        self._say = say
        self._chance = random.Random(plan.seed)
        self._born = 0
        self.verdict = Verdict()

    async def run(self) -> Verdict:
        """Breaks, waits for the end, counts."""
        started_s = time.monotonic()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
            server = stack.enter_context(PrivateServer(self._kind, persistence="always" if self.plan.restarts else "none"))
            proxy = stack.enter_context(LossyProxy(server.socket, seed=self.plan.seed, cut_share=self.plan.lost_replies))
            queue = self._settings(server.url)
            environment = {
                "ROLLSTREAM_REDIS_URL": proxy.url,
                "ROLLSTREAM_NAMESPACE": queue.namespace,
                "ROLLSTREAM_SHARDS": str(queue.shards),
                "ROLLSTREAM_LEASE_S": str(queue.lease_s),
                "ROLLSTREAM_RETRY_BACKOFF_S": "0.02",
                "ROLLSTREAM_RETRY_BACKOFF_MAX_S": "0.5",
            }
            children = stack.enter_context(ChildProcesses(folder, environment))
            client = command_client(queue)
            try:
                await self._break_and_count(queue, client, server, proxy, children, folder)
            finally:
                await client.aclose()
            self.verdict.replies_cut = proxy.replies_cut
        self.verdict.seconds = time.monotonic() - started_s
        return self.verdict

    def _settings(self, url: str) -> QueueSettings:
        return QueueSettings(redis_url=url, namespace="chaos", shards=max(1, self.plan.runs), lease_s=self.plan.lease_s)

    # ---- the course of events

    async def _break_and_count(
        self,
        queue: QueueSettings,
        client: AsyncClient,
        server: PrivateServer,
        proxy: LossyProxy,
        children: ChildProcesses,
        folder: Path,
    ) -> None:
        runs = self._runs(queue)
        for run in runs:
            scripts = Scripts(client, run.keys)
            run.incarnation = await scripts.connect_run(run.name, nonce=new_nonce(), ttl_s=3600)
            for _ in range(self.plan.raw_entries):
                await ask(client, "XADD", run.keys.key("s", "init"), "*", "payload", bytes.fromhex("ffff00"))
        if len(runs) > 1:  # the flood is there before the others come
            await self._accept(client, runs[0], self.plan.jobs * 3 // 4 // GROUP)
        workers = {slot: self._start(children, slot) for slot in range(self.plan.workers)}
        async with asyncio.TaskGroup() as tasks:
            over = asyncio.Event()
            feed = tasks.create_task(self._feed(client, runs, over), name="feed")
            await self._kill(children, workers)
            await self._pass_failpoints(children, workers, folder, client, runs)
            await self._freeze(children, workers, client, runs)
            for _ in range(self.plan.restarts):
                await asyncio.sleep(self.plan.lease_s)
                server.restart()
                self.verdict.restarts += 1
                self._say(f"server killed and started again ({self.verdict.restarts})")
            if self.plan.outage:
                await self._cut_off(client, runs, proxy)
            over.set()
            await feed
            watch = tasks.create_task(self._watch_ends(client, runs), name="watch")
            await self._keep_alive(children, workers, watch)
        for run in runs:
            audit = QueueAudit(client, run.keys)
            self.verdict.faults += await self._settled(audit, run)
            self.verdict.lost_attempts += await self._lost(client, run)
        self.verdict.jobs = sum(len(run.units) * GROUP for run in runs)
        if len(runs) > 1:
            self.verdict.small_run_done_s = max(run.done_s for run in runs[1:])
            if self.verdict.small_run_done_s > runs[0].done_s:
                self.verdict.faults.append("the run that floods was done before the others")

    def _runs(self, queue: QueueSettings) -> list[_Run]:
        names: list[str] = []
        number = 0
        while len(names) < self.plan.runs:  # each on the next shard
            name = f"chaos{number}"
            number += 1
            if shard_of(name, queue.shards) == len(names):
                names.append(name)
        return [_Run(name, Keys.of_shard(queue.namespace, shard_of(name, queue.shards))) for name in names]

    async def _feed(self, client: AsyncClient, runs: list[_Run], over: asyncio.Event) -> None:
        """A group of each run now and then while things are broken, so that each breakage meets jobs; then the rest."""
        steady = runs[1:] or runs
        while not over.is_set():
            for run in steady:
                if await self._open_jobs(client, run) < MOST_OPEN:
                    await self._accept(client, run, 1)
            try:
                async with asyncio.timeout(FEED_EVERY_S):
                    await over.wait()
            except TimeoutError:
                continue
        missing = self.plan.jobs // GROUP - sum(len(run.units) for run in runs)
        if missing > 0:
            await self._accept(client, runs[-1], missing)

    async def _open_jobs(self, client: AsyncClient, run: _Run) -> float:
        """Jobs of a run without a result; more than any number while Redis is away."""
        try:
            return len(run.units) * GROUP - int(await ask(client, "XLEN", run.keys.results(run.name)))
        except (BrokerError, OSError):
            return math.inf

    async def _accept(self, client: AsyncClient, run: _Run, groups: int) -> None:
        scripts = Scripts(client, run.keys)
        template = JobTemplate(task="chaos", max_failed=50, max_lost=200, wall_s=3600)
        body = codec.encode(template)
        prompt = codec.encode(Prompt(id="p", data={"question": "?"}))
        first = len(run.units)
        run.units += [Unit(f"{run.name}.e0-{i}.0", GROUP, f"e0-{i}", 0, "1.0", prompt) for i in range(first, first + groups)]
        for at in range(first, len(run.units), 4):
            while True:
                try:
                    batch = run.units[at : at + 4]
                    await scripts.accept(run.name, run.incarnation, template, "t", body, batch, max_waiting=10**6, window=256)
                    break
                except (QueueFull, BrokerError):
                    await asyncio.sleep(POLL_S)

    def _start(self, children: ChildProcesses, slot: int, **environment: str) -> Child:
        self._born += 1
        return children.start(
            f"worker{slot}-{self._born}",
            "ops.chaos.worker_process",
            f"node{slot}",
            str(self.plan.slots),
            str(self.plan.seed * 1000 + self._born),
            environment=environment,
        )

    async def _kill(self, children: ChildProcesses, workers: dict[int, Child]) -> None:
        for number in range(self.plan.kills):
            await asyncio.sleep(self.plan.kill_every_s * self._chance.uniform(0.5, 1.5))
            slot = self._chance.randrange(self.plan.workers)
            self._sigkill(workers[slot])
            workers[slot] = self._start(children, slot)
            if number % 10 == 9:
                self._say(f"{number + 1} workers killed")

    def _sigkill(self, child: Child) -> None:
        child.asked_to_stop = True
        if child.exit_code is None:
            child.process.kill()
            child.process.wait()
            self.verdict.kills += 1

    async def _pass_failpoints(
        self, children: ChildProcesses, workers: dict[int, Child], folder: Path, client: AsyncClient, runs: list[_Run]
    ) -> None:
        """Each place once: armed workers run until one has died there, and are replaced."""
        fired = []
        for name in self.plan.failpoints:
            once = folder / f"failpoint-{name}"
            arms = {FAILPOINT: name, FAILPOINT_ONCE: str(once)}
            armed = range(self.plan.workers) if name in SELDOM_FAILPOINTS else range(1)
            for slot in armed:
                self._sigkill(workers[slot])
                workers[slot] = self._start(children, slot, **arms)
            if name in LEAVING_FAILPOINTS:
                await self._has_its_name(client, runs, 0, workers[0])
                workers[0].process.terminate()
            deadline_s = time.monotonic() + PATIENCE_S
            while not once.exists() and time.monotonic() < deadline_s:
                await asyncio.sleep(POLL_S)
                if name == "reject" and self._chance.random() < 0.2:  # something to reject
                    await ask(client, "XADD", runs[0].keys.key("s", "init"), "*", "payload", b"raw")
                if name == "recover" and self._chance.random() < 0.02:  # something to recover
                    self._sigkill(workers[1])
                    workers[1] = self._start(children, 1, **arms)
            if once.exists():
                fired.append(name)
                self.verdict.kills += 1
            else:
                self.verdict.faults.append(f"failpoint {name} was not passed in {PATIENCE_S:.0f} s")
            for slot in armed:
                self._sigkill(workers[slot])
                workers[slot] = self._start(children, slot)
        self.verdict.failpoints = tuple(fired)
        if fired:
            self._say(f"died at each of {len(fired)} failpoints")

    async def _has_its_name(self, client: AsyncClient, runs: list[_Run], slot: int, child: Child) -> None:
        names = [run.keys.worker(f"{stage.value}-node{slot}-0") for run in runs for stage in Stage]

        async def has() -> bool:
            if child.exit_code is not None:
                raise RuntimeError(f"{child.name} ended with {child.exit_code}: {log_tail(child.log)}")
            held_by = [process_of(await ask(client, "HGET", name, "boot") or b"") for name in names]
            return set(held_by) == {child.process.pid}

        await wait_until(has, f"{child.name} has its names", timeout_s=PATIENCE_S)

    async def _freeze(self, children: ChildProcesses, workers: dict[int, Child], client: AsyncClient, runs: list[_Run]) -> None:
        for number in range(self.plan.freezes):
            slot = number % self.plan.workers
            frozen = workers[slot]
            await self._has_its_name(client, runs, slot, frozen)
            frozen.process.send_signal(signal.SIGSTOP)
            workers[slot] = self._start(children, slot)
            await self._has_its_name(client, runs, slot, workers[slot])
            frozen.asked_to_stop = True
            frozen.process.send_signal(signal.SIGCONT)
            deadline_s = time.monotonic() + PATIENCE_S
            while frozen.exit_code is None and time.monotonic() < deadline_s:  # noqa: ASYNC110  # the end of a process is no event here
                await asyncio.sleep(POLL_S)
            if frozen.exit_code == EXIT_USURPED:
                self.verdict.usurped += 1
            else:
                ended = f"ended with {frozen.exit_code}, expected {EXIT_USURPED}: {log_tail(frozen.log)[-1500:]}"
                self.verdict.faults.append(f"a frozen worker whose name was taken {ended}")
            self._say("a frozen worker woke up after its successor took its name, and left")

    async def _cut_off(self, client: AsyncClient, runs: list[_Run], proxy: LossyProxy) -> None:
        # losses of what came before are counted before: let the leases of killed workers run out first
        await asyncio.sleep(3 * self.plan.lease_s)
        before = sum([await self._lost(client, run) for run in runs])
        proxy.begin_outage()
        self._say("outage of two leases")
        await asyncio.sleep(2 * self.plan.lease_s)
        proxy.heal()
        await asyncio.sleep(4 * self.plan.lease_s)
        self.verdict.lost_by_outage = sum([await self._lost(client, run) for run in runs]) - before
        if self.verdict.lost_by_outage:
            self.verdict.faults.append(f"the outage cost {self.verdict.lost_by_outage} attempts, expected none")

    async def _keep_alive(self, children: ChildProcesses, workers: dict[int, Child], watch: asyncio.Task[None]) -> None:
        """Nothing is broken any more; a worker that ends now is a fault of ours."""
        while not watch.done():
            for slot, child in workers.items():
                if child.exit_code is not None:
                    self.verdict.faults.append(f"{child.name} ended by itself with {child.exit_code}: {log_tail(child.log)[-1500:]}")
                    workers[slot] = self._start(children, slot)
            await asyncio.sleep(POLL_S)

    # ---- counting

    async def _watch_ends(self, client: AsyncClient, runs: list[_Run]) -> None:
        started_s = time.monotonic()
        while any(not run.done_s for run in runs):
            if time.monotonic() - started_s > self.plan.timeout_s:
                self.verdict.faults.append(f"not done after {self.plan.timeout_s:.0f} s")
                return
            await asyncio.sleep(4 * POLL_S)
            for run in runs:
                try:
                    results = await ask(client, "XLEN", run.keys.results(run.name))
                except (BrokerError, OSError):
                    continue
                if results >= len(run.units) * GROUP and not run.done_s:
                    run.done_s = time.monotonic() - started_s

    async def _settled(self, audit: QueueAudit, run: _Run) -> list[str]:
        """The audit, once the last acknowledgements are through."""
        faults: list[str] = []
        for _ in range(40):
            faults = await audit.all_ended(run.name, run.units)
            if not faults:
                return []
            await asyncio.sleep(0.1)
        return [f"{run.name}: {fault}" for fault in faults[:20]]

    async def _lost(self, client: AsyncClient, run: _Run) -> int:
        total = 0
        for unit in run.units:
            for member in range(GROUP):
                total += int(await ask(client, "HGET", run.keys.job(f"{unit.id}.{member}"), "lost") or 0)
        return total
