"""Three allocations of a node each on a Redis outside of them: two are preempted while jobs run, and come back (docs/how-to/slurm.md).

The lease is far longer than the test: a job that waited for one would not come to its end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.slurm.cluster import ROOT, Cluster
from tests.integration.slurm.jobs import PROBLEMS, SMALL, START_S, requests
from trainer_client import connect
from workers.llm.scripted import Latency, PolicyOptions, ScriptedServer, ServerOptions, read_problems

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

NODES = 3
LEASE_S = 3600.0
GRACE_S = 24
"""RUN hands back after four fifths of it."""
TURN_S = 30.0
"""Longer than that."""
ALLOCATIONS = {81: 1, 82: 2, 83: 3}
"""Number of the job -> its node."""


@pytest.fixture
def outside(cluster: Cluster) -> Iterator[QueueSettings]:
    """A Redis on a machine that is no node, with users and their passwords in files; as a trainer connects."""
    folder, shared = cluster.folder / "outside", cluster.folder / "shared"
    words = ["--host", cluster.address("here"), "--port", "0", "--data-dir", str(folder), "--shared-dir", str(shared)]
    log = cluster.folder / "redis.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "redis", "serve", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
        )
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said.startswith(b"redis serves at"), log.read_text()
        told = json.loads((shared / "address.json").read_text(encoding="utf-8"))
        url = f"redis://{told['host']}:{told['port']}/0"
        yield QueueSettings(redis_url=url, redis_user="trainer", redis_password_file=shared / "trainer.password", lease_s=LEASE_S)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


async def until_up(cluster: Cluster, job: int, batch: subprocess.Popen[bytes], times: int = 1) -> None:
    """Its node says for the `times`-th time that all of it is there."""

    def is_up() -> bool:
        assert batch.poll() is None, cluster.log(job)
        return cluster.log(job).count("node_up") >= times

    await wait_until(is_up, f"the node of {job} is up", timeout_s=START_S)


async def running_on(client: AsyncClient, keys: Keys, run: str, jobs: int) -> dict[str, set[str]]:
    """Node -> jobs that RUN has there."""
    found: dict[str, set[str]] = {}
    for number in range(jobs):
        state, owner = await ask(client, "HMGET", keys.job(f"{run}.p-{number}"), "st", "own")
        if state == b"running" and owner.startswith(b"run-"):
            found.setdefault(owner.decode()[len("run-") : owner.decode().rindex("-")], set()).add(f"{run}.p-{number}")
    return found


def has_ended(batch: subprocess.Popen[bytes]) -> bool:
    return batch.poll() is not None


async def test_preempted_allocations_hand_back_what_cannot_end_and_come_back(cluster: Cluster, outside: QueueSettings) -> None:
    """Within the grace what runs ends, or goes back at once when a turn takes longer; no job is lost, tried again, or has two records."""
    state = cluster.folder / "state"
    state.mkdir()
    environment = {
        "ROLLSTREAM_REDIS_URL": outside.redis_url,
        "ROLLSTREAM_REDIS_USER": "worker",
        "ROLLSTREAM_REDIS_PASSWORD_FILE": str(cluster.folder / "shared/worker.password"),
        "ROLLSTREAM_LEASE_S": str(LEASE_S),
        "GRACE_S": str(GRACE_S),
    }

    def allocate(job: int) -> subprocess.Popen[bytes]:
        words = (*SMALL, *(() if job == 83 else ("--no-supervisor",)))
        return cluster.allocate(job, 1, *words, state=state, first=ALLOCATIONS[job], **environment)

    batches = {job: allocate(job) for job in ALLOCATIONS}
    for job, batch in batches.items():
        await until_up(cluster, job, batch)
    assert not any(word.endswith(("valkey-server", "redis-server")) for each in cluster.processes() for word in each.cmdline()[:1])
    assert [path.name for path in state.iterdir() if path.name == "redis"] == []  # nothing of a Redis of ours

    client, keys = command_client(outside), Keys.of_shard(outside.namespace, 0)
    pool = InferencePool(client, outside.namespace, lease_s=LEASE_S)
    quick = ServerOptions(latency=Latency(first_token_s=1.0), policy=PolicyOptions(tool_rate=0.0))
    slow = ServerOptions(latency=Latency(first_token_s=TURN_S), policy=PolicyOptions(tool_rate=0.0))
    try:
        for name, options, jobs, preempted in (("quick", quick, 16, 81), ("slow", slow, 4, 82)):
            node = f"{cluster.name(ALLOCATIONS[preempted])}-{preempted}"
            async with (
                ScriptedServer(options, read_problems([PROBLEMS]), host=cluster.address("here")) as model,
                ScriptedServer(quick, read_problems([PROBLEMS]), host=cluster.address("here")) as later,
                connect(outside, run=name) as run,
            ):
                await pool.attach(name, [Server(model.url)])
                submitted = await run.submit(requests()[:jobs], wait_s=60.0)

                async def runs_there(run: str = name, jobs: int = jobs, node: str = node) -> bool:
                    return node in await running_on(client, keys, run, jobs)

                await wait_until(runs_there, f"{node} runs jobs", timeout_s=START_S)
                cluster.preempt(preempted)
                batch = batches[preempted]
                await wait_until(partial(has_ended, batch), f"{preempted} has drained", timeout_s=START_S)
                assert batch.returncode == 0, cluster.log(preempted)
                assert cluster.processes(f"-{preempted}-0") == []
                batches[preempted] = allocate(preempted)  # requeued: the same number, the same machine
                await pool.attach(name, [Server(later.url)])
                await pool.drain(name, [model.url])  # what goes on there has its time, what begins again is quick

                results = [result async for result in run.results(submitted, timeout_s=START_S)]

                assert Counter(result.job for result in results) == Counter(f"{name}.p-{number}" for number in range(jobs))
                assert {result.outcome for result in results} <= {"ok", "model_failure"}
                told = [await ask(client, "HMGET", keys.job(result.job), "failed", "lost", "att") for result in results]
                assert [(failed, lost) for failed, lost, _ in told] == [(b"0", b"0")] * jobs
                assert any(int(attempt) > 3 for *_, attempt in told) == (name == "slow"), told  # handed back, or ended there
                await run.ack(results)
            assert "process_killed" not in cluster.log(preempted), cluster.log(preempted)
            await until_up(cluster, preempted, batches[preempted], times=2)

        async with (
            ScriptedServer(quick, read_problems([PROBLEMS]), host=cluster.address("here")) as model,
            connect(outside, run="back") as run,
        ):
            await pool.attach("back", [Server(model.url)])
            submitted = await run.submit(requests()[:16], wait_s=60.0)
            seen: set[str] = set()

            async def all_run() -> bool:
                seen.update(await running_on(client, keys, "back", 16))
                return {f"c{node}-{job}" for job, node in ALLOCATIONS.items()} <= seen

            await wait_until(all_run, "the allocations that came back run jobs too", timeout_s=START_S)
            assert len([result async for result in run.results(submitted, timeout_s=START_S)]) == 16
    finally:
        await client.aclose()

    passwords = [path.read_text(encoding="utf-8").strip() for path in (cluster.folder / "shared").glob("*.password")]
    assert passwords
    shown = "".join(cluster.log(job) for job in ALLOCATIONS)
    for process in cluster.processes():
        try:
            shown += " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue
    assert not [word for word in passwords if word in shown]
