"""ops/slurm on a real Slurm, where one is installed (`apt-get install slurm-wlm munge`): what `srun` and Slurm's signals really do.

The lease is far longer than a test: a job that waited for one would not come to its end.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ops.bench.nodes_network import NoNamespaces
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.slurm.cluster import Cluster
from tests.integration.slurm.jobs import PROBLEMS, SMALL, START_S, requests
from tests.integration.slurm.real import RealSlurm, missing
from trainer_client import connect
from trainer_client.client import Run
from workers.llm.scripted import Latency, PolicyOptions, ScriptedServer, ServerOptions, read_problems

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {', '.join(missing())} not found (apt-get install slurm-wlm munge)"),
]

LEASE_S = 3600.0
JOBS = 12


@asynccontextmanager
async def slurm_of(nodes: int) -> AsyncIterator[RealSlurm]:
    with tempfile.TemporaryDirectory(prefix="rsl-", dir="/tmp") as folder:
        try:
            with Cluster(Path(folder), nodes) as cluster, RealSlurm(cluster) as slurm:
                await slurm.until_idle()
                yield slurm
        except NoNamespaces as why:
            pytest.skip(str(why))


async def until_up(slurm: RealSlurm, job: int, nodes: int) -> None:
    def is_up() -> bool:
        log = slurm.cluster.folder / f"job-{job}.log"
        return log.exists() and log.read_text(errors="replace").count("node_up") >= nodes

    await wait_until(is_up, f"{nodes} nodes of {job} are up", timeout_s=START_S)


def queue_of(slurm: RealSlurm, state: Path) -> QueueSettings:
    """As a trainer outside of the allocation connects."""
    told = json.loads((state / "redis/address.json").read_text(encoding="utf-8"))
    url = f"redis://{slurm.cluster.address(told['host'])}:{told['port']}/0"
    return QueueSettings(redis_url=url, redis_user="trainer", redis_password_file=state / "redis/trainer.password", lease_s=LEASE_S)


async def rest_of(run: Run, client: AsyncClient, keys: Keys, ended: list[str], *, most: int) -> None:
    """Submits all again, and takes what has not been seen; none was tried again or lost."""
    jobs = await run.submit([each for each in requests()[:JOBS] if f"{run.id}.{each.id}" not in ended], wait_s=60.0)
    async for result in run.results(jobs, timeout_s=START_S):
        assert await ask(client, "HMGET", keys.job(result.job), "failed", "lost") == [b"0", b"0"], result.job
        ended.append(result.job)
        await run.ack([result])
        if len(ended) >= most:
            return


@pytest.mark.parametrize("how", ["told", "preempted"])
async def test_nodes_drain_and_the_next_allocation_goes_on(how: str) -> None:
    """At the time limit (told), or when a job of more priority needs a machine, which requeues this one.

    What runs ends or is handed back, no job waits for a lease, the queue comes back with the next allocation, and each job has one record.
    """
    ended: list[str] = []
    options = ServerOptions(latency=Latency(first_token_s=4.0), policy=PolicyOptions(tool_rate=0.0))
    async with slurm_of(2) as slurm:
        state = slurm.cluster.folder / "state-folder"
        state.mkdir()
        environment = {"ROLLSTREAM_LEASE_S": str(LEASE_S), "GRACE_S": "20"}
        job = slurm.submit(2, *SMALL, state=state, **environment)
        await until_up(slurm, job, 2)
        async with ScriptedServer(options, read_problems([PROBLEMS]), host=slurm.cluster.address("here")) as model:

            async def go_on(*, most: int) -> None:
                settings = queue_of(slurm, state)
                client = command_client(settings)
                try:
                    async with connect(settings, run="slurm") as run:
                        await InferencePool(client, settings.namespace, lease_s=LEASE_S).attach("slurm", [Server(model.url)])
                        await rest_of(run, client, Keys.of_shard(settings.namespace, 0), ended, most=most)
                finally:
                    await client.aclose()

            await go_on(most=3)
            if how == "told":
                slurm.tell(job)
                await wait_until(lambda: slurm.is_over(job), "the job has ended", timeout_s=START_S)
            else:
                other = slurm.submit(1, "sleep 1", partition="high")
                await wait_until(lambda: slurm.state(job) == "PENDING", "the job was requeued", timeout_s=START_S)
                await wait_until(lambda: slurm.is_over(other), "the other one has ended", timeout_s=START_S)
            log = (slurm.cluster.folder / f"job-{job}.log").read_text(errors="replace")
            assert log.count("node_drains") == log.count("node_ended") == 2, log
            assert "Killed" not in log
            assert "Redis did not end as it should" not in log
            assert not list(slurm.cluster.folder.glob("rollstream-redis-*"))  # it has gone to the state folder
            assert (state / "redis/data").is_dir()
            following = slurm.submit(2, *SMALL, state=state, **environment) if how == "told" else job
            await until_up(slurm, following, 2 if following != job else 4)
            await go_on(most=JOBS)

    assert Counter(ended) == Counter(f"slurm.p-{number}" for number in range(JOBS))
