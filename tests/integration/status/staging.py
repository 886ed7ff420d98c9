"""A pipeline that is whole, moved by hand, and what goes wrong with it: each trouble is staged by the product's own scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import redis

from ops.node.reading import read_nodes
from pipeline.errors import BrokerUnreachable
from pipeline.inference_pool import InferencePool
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.inference_pool.records import Server
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.scripts import Scripts
from pipeline.scripts.calls import Held, NameHolder
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.streams import ensure_group
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import ManualWorker, a_template, a_unit, wait_until
from tests.secret_words import a_secret

RUN = "run1"
PASSWORD = a_secret("staged")
SERVER = "http://127.0.0.1:8900"
LONG_MS = 3_600_000


@dataclass
class Staged:
    """A run with jobs, and a live worker of each stage on node n1."""

    settings: QueueSettings
    client: AsyncClient
    incarnation: int = 0
    jobs: list[str] = field(default_factory=list)
    workers: dict[Stage, ManualWorker] = field(default_factory=dict)

    @property
    def keys(self) -> Keys:
        return Keys.of_shard(self.settings.namespace, 0)

    @property
    def scripts(self) -> Scripts:
        return Scripts(self.client, self.keys)

    @property
    def pool(self) -> InferencePool:
        return InferencePool(self.client, self.settings.namespace, lease_s=30.0)

    async def begin(self, *, jobs: int = 4, but: Stage | None = None) -> None:
        """The run is open, its jobs wait in INIT, and workers live, but of one stage."""
        self.incarnation = await self.scripts.connect_run(RUN, nonce="trainer", ttl_s=3600)
        for stage in Stage:
            if stage is not but:
                await self.live(stage)
        await StepScripts(self.client, self.keys).announce_policies(["spread"])  # as a supervisor does that lives
        units = [a_unit(RUN, f"e0-i{number}") for number in range(jobs)]
        await self.scripts.accept(RUN, self.incarnation, a_template(), "t", b"\x00\x80", units, max_waiting=10**6, window=256)
        self.jobs = [unit.id for unit in units]

    async def live(self, stage: Stage, *, node: str = "n1") -> ManualWorker:
        """A worker of a stage beats, and reads its common stream."""
        worker = ManualWorker(self.scripts, stage, f"{stage.value}-{node}-0")
        await self.scripts.take_name(stage, worker.consumer, "boot1", NameHolder(node, 4, 1, "0"), lock_ms=LONG_MS)
        await ensure_group(self.client, self.keys, stage, worker.stream)
        await ask(self.client, "XGROUP CREATECONSUMER", worker.stream, stage.value, worker.consumer)
        if stage is Stage.RUN:
            await self.scripts.beat_node(node, "e1", live_ms=LONG_MS, reads_lane=True)
        self.workers.setdefault(stage, worker)
        return worker

    async def to_run(self, *, node: str = "") -> list[Held]:
        """All jobs are handed to RUN."""
        held = await self.workers[Stage.INIT].take()
        words = await self.workers[Stage.INIT].hand_off(*held, node=node, epoch="e1" if node else "")
        assert len(words) == len(self.jobs)
        return held

    async def at_run(self) -> list[Held]:
        """All jobs are at work in RUN."""
        await self.to_run()
        held = await self.workers[Stage.RUN].take()
        assert len(held) == len(self.jobs)
        return held


# ---- troubles: each takes a pipeline from `begin` on, and may answer other settings to look with


async def no_run_worker(staged: Staged) -> None:
    await staged.begin(but=Stage.RUN)
    await staged.to_run()


async def no_server(staged: Staged) -> None:
    await staged.begin()
    await staged.at_run()


async def servers_paused(staged: Staged) -> None:
    await staged.begin()
    await staged.pool.attach(RUN, [Server(SERVER)])
    await staged.at_run()
    pauses = PoolPauses(staged.client, staged.settings.namespace)
    await pauses.take(RUN, staged.incarnation, "trainer-1", why="update", mode="keep", to="1.1", lease_s=3600)
    key = Keys.of_pool(staged.settings.namespace).pool_run(RUN)
    since = int(await ask(staged.client, "HGET", key, "pause.since"))
    await ask(staged.client, "HSET", key, "pause.since", since - 60_000)  # a younger one is how a run goes on


async def server_unsynced(staged: Staged) -> None:
    await staged.begin()
    await staged.pool.attach(RUN, [Server(SERVER, control="trainer")], after_update=True)
    await staged.at_run()


async def reserve_empty(staged: Staged) -> None:
    await staged.begin(jobs=0)
    steps = StepScripts(staged.client, staged.keys)
    await steps.open_step(RUN, staged.incarnation, 1, StepSpec(target=4, n=2), a_template(), "t", b"\x00\x80")


async def lane_orphaned(staged: Staged) -> None:
    await staged.begin()
    await staged.scripts.beat_node("n2", "e1", live_ms=LONG_MS, reads_lane=True)
    await ensure_group(staged.client, staged.keys, Stage.RUN, staged.keys.stage_stream(Stage.RUN, node="n2"))
    await staged.to_run(node="n2")
    await ask(staged.client, "DEL", staged.keys.key("n", "n2", "run"))


async def fleet_gone(staged: Staged) -> None:
    """The launcher of the only node said when its allocation ends, and that has passed."""
    await staged.begin()
    for worker in staged.workers.values():
        await staged.scripts.drop_name(worker.consumer, "boot1")
    await node_says(staged, {"state": "ended", "why": "until", "until": await redis_now_ms(staged.client) - 50_000})


async def node_says(staged: Staged, fields: Mapping[str, object]) -> None:
    """The last words of a node that has given its name up a minute ago."""
    node = "gpu7-4711"
    then_ms = await redis_now_ms(staged.client) - 60_000
    said = {"boot": "", "beat": then_ms, "clock": then_ms, "lease": 30_000, **fields}
    await ask(staged.client, "HSET", staged.keys.launched_node(node), *(str(word) for pair in said.items() for word in pair))
    await ask(staged.client, "PEXPIRE", staged.keys.launched_node(node), LONG_MS)
    await ask(staged.client, "ZADD", staged.keys.launchers, then_ms, node)
    await ask(staged.client, "PEXPIRE", staged.keys.launchers, LONG_MS)
    assert node in [view.name for view in await read_nodes(staged.client, staged.settings)]


CRASHED: Mapping[str, object] = {
    "state": "failed",
    "why": "run-0 crashed 6 times in a row: exit code 1",
    "failed": "run-0",
    "crash.name": "run-0",
    "crash.code": 1,
    "crash.tail": "Traceback\nMemoryError: no room",
}


async def node_failed(staged: Staged) -> None:
    """Others do its work."""
    await staged.begin()
    await node_says(staged, CRASHED)


async def image_missing(staged: Staged) -> None:
    from workers.sandbox.errors import ImageMissing
    from workers.stages.failures import described, failure_of

    await staged.begin()
    first, *_ = await staged.workers[Stage.INIT].take()
    why = described(failure_of(Stage.INIT, ImageMissing("docker://swebench/astropy:4")))
    await staged.workers[Stage.INIT].give_up(first, kind="dead", why=why)


async def node_degraded(staged: Staged) -> None:
    await staged.begin()
    await staged.workers[Stage.INIT].renew(idle_why="node n1 is degraded: 3 sandboxes in a row did not start: no user namespaces")


async def poison_job(staged: Staged) -> None:
    """Its workers died under it again and again: the last time it was one too many."""
    await staged.begin(jobs=1)
    worker = staged.workers[Stage.INIT]

    async def lost_again() -> bool:
        await staged.scripts.promote()
        held = await worker.take()
        return (await worker.recover("idle", *held)) == ["dead"]

    await wait_until(lost_again, "its budget of losses is used up")


async def clock_skew(staged: Staged) -> None:
    await staged.begin()
    await staged.workers[Stage.RUN].renew(skew_ms=-90_000)


async def memory_full(staged: Staged) -> None:
    await staged.begin()
    for number in range(12):
        await ask(staged.client, "SET", staged.keys.key("b", "filler", number), b"x" * (1 << 20), "PX", LONG_MS)


async def disk_full(staged: Staged) -> None:
    await staged.begin()
    await refuse_writes(staged)


async def refuse_writes(staged: Staged) -> None:
    """What a server does whose disk is full: a save fails, and from then on it takes no writes."""
    (folder,) = (await ask(staged.client, "CONFIG GET", "dir")).values()
    in_the_way = Path(folder if isinstance(folder, str) else folder.decode()) / "dump.rdb"
    in_the_way.mkdir()
    (in_the_way / "file").touch()
    await ask(staged.client, "BGSAVE")

    async def refuses() -> bool:
        try:
            await ask(staged.client, "SET", staged.keys.key("b", "x"), "1", "PX", LONG_MS)
        except BrokerUnreachable as error:
            return "MISCONF" in str(error)
        return False

    await wait_until(refuses, "it takes no writes")


async def acl_user(staged: Staged, name: str, *rules: str) -> QueueSettings:
    """A user of the server, and the settings of who connects as that."""
    await ask(staged.client, "ACL SETUSER", name, "reset", "on", f">{PASSWORD}", *rules)
    file = Path(await _folder(staged)) / f"{name}.password"
    file.write_text(f"{PASSWORD}\n")
    return staged.settings.model_copy(update={"redis_user": name, "redis_password_file": file})


async def acl_without_info(staged: Staged) -> QueueSettings:
    await staged.begin()
    return await acl_user(staged, "narrow", "~*", "+@all", "-info", "-@admin")


async def acl_without_keys(staged: Staged) -> QueueSettings:
    await staged.begin()
    return await acl_user(staged, "foreign", "~other:*", "+@all", "-@admin")


async def acl_of_a_worker(staged: Staged) -> None:
    """A worker's user may not claim."""
    await staged.begin()
    settings = await acl_user(staged, "worker", "~*", "&*", "+@all", "-xreadgroup")
    assert settings.redis_password_file is not None
    with redis.Redis.from_url(staged.settings.redis_url, username="worker", password=PASSWORD) as worker:
        try:
            worker.xreadgroup("init", "init-n1-0", {staged.keys.stage_stream(Stage.INIT): ">"})
        except redis.exceptions.NoPermissionError:
            return
    raise AssertionError("it may claim")


async def wrong_password(staged: Staged) -> QueueSettings:
    await staged.begin()
    settings = await acl_user(staged, "worker", "~*", "+@all")
    assert settings.redis_password_file is not None
    settings.redis_password_file.write_text(a_secret("wrong") + "\n")
    return settings


async def _folder(staged: Staged) -> str:
    (folder,) = (await ask(staged.client, "CONFIG GET", "dir")).values()
    return folder if isinstance(folder, str) else folder.decode()
