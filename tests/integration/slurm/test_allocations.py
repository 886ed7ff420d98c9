"""ops/slurm on a stand-in for Slurm: nodes in network namespaces, one that is cut off and preempted, one run in two allocations.

No promise of Slurm's own is tested here, only what the templates do with its signals, variables and `srun`.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from pipeline.inference_pool import InferencePool, Server
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.slurm.cluster import Cluster, tell
from tests.integration.slurm.jobs import JOBS, PROBLEMS, SMALL, START_S, requests
from trainer_client import connect
from workers.llm.scripted import Latency, PolicyOptions, ScriptedServer, ServerOptions, read_problems

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

NODES = 2
WORDS = (*SMALL, "--no-supervisor")


async def queue_of(cluster: Cluster, state: Path, batch: subprocess.Popen[bytes], job: int) -> QueueSettings:
    """The queue of an allocation, once its Redis serves, as a trainer outside of it connects."""
    address = state / "redis/address.json"

    def serves() -> bool:
        assert batch.poll() is None, cluster.log(job)
        return address.exists()

    await wait_until(serves, "Redis serves on the first node", timeout_s=START_S)
    told = json.loads(address.read_text(encoding="utf-8"))
    url = f"redis://{cluster.address(told['host'])}:{told['port']}/0"
    return QueueSettings(redis_url=url, redis_user="trainer", redis_password_file=state / "redis/trainer.password", lease_s=6.0)


async def test_one_run_goes_through_two_allocations_a_cut_node_and_a_preempted_one(cluster: Cluster) -> None:
    """Each job has one terminal record, whatever became of the node that ran it."""
    state = cluster.folder / "state"
    ended: list[str] = []
    options = ServerOptions(latency=Latency(first_token_s=0.3, per_token_s=0.01), policy=PolicyOptions(tool_rate=0.0))
    async with ScriptedServer(options, read_problems([PROBLEMS]), host=cluster.address("here")) as model:

        async def go_on(queue: QueueSettings, until: int) -> None:
            """The trainer: submits all again, each time; what ended before is known by its id."""
            client = command_client(queue)
            try:
                async with connect(queue, run="slurm") as run:
                    await InferencePool(client, queue.namespace, lease_s=queue.lease_s).attach("slurm", [Server(model.url)])
                    jobs = await run.submit([each for each in requests() if f"slurm.{each.id}" not in ended], wait_s=60.0)
                    async for result in run.results(jobs, timeout_s=START_S):
                        assert result.outcome in ("ok", "model_failure"), (result.job, result.outcome, result.reason)
                        ended.append(result.job)
                        await run.ack([result])
                        if len(ended) >= until:
                            return
            finally:
                await client.aclose()

        first = cluster.allocate(71, 2, *WORDS, state=state, ROLLSTREAM_LEASE_S="6", GRACE_S="40")
        queue = await queue_of(cluster, state, first, 71)
        await go_on(queue, 3)
        cluster.network.cut(2)
        await go_on(queue, 7)  # by the first node, also what the second one held
        cluster.network.join(2)
        await go_on(queue, 9)
        cluster.kill(2)
        await go_on(queue, 11)
        tell(first)
        await wait_until(lambda: first.poll() is not None, "the allocation has ended", timeout_s=START_S)

        assert not (state / "redis/address.json").exists(), cluster.log(71)
        assert (state / "redis/data").is_dir(), cluster.log(71)
        assert cluster.processes() == []
        assert list(cluster.folder.glob("tmp1/rollstream-redis-*")) == []  # it has gone to the state folder

        second = cluster.allocate(72, 1, *WORDS, state=state, ROLLSTREAM_LEASE_S="6", GRACE_S="40")
        queue = await queue_of(cluster, state, second, 72)
        await go_on(queue, JOBS)
        # told before that, a launcher has no handlers yet, and dies of the signal
        await wait_until(lambda: "node_up" in cluster.log(72), f"the node is up: {cluster.log(72)}", timeout_s=START_S)
        tell(second)
        await wait_until(lambda: second.poll() is not None, "the second allocation has ended", timeout_s=START_S)

    assert second.returncode == 0, cluster.log(72)
    assert Counter(ended) == Counter(f"slurm.p-{number}" for number in range(JOBS))
    said = cluster.log(71) + cluster.log(72)
    passwords = [path.read_text(encoding="utf-8").strip() for path in (state / "redis").glob("*.password")]
    assert passwords
    assert not [word for word in passwords if word in said]
    assert "node_up" in said
