"""Three nodes with image stores of their own: who unpacks an image, and what the loss of a node costs (ADR 18 "Placing", ADR 27)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from ops.child_processes import log_tail
from ops.node.reading import read_node
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.node.conftest import ROOT, START_S, Machine, make_machine
from trainer_client import JobRequest, LimitsRequest, Run, connect
from workers.llm.scripted import Latency, PolicyOptions, ScriptedServer, ServerOptions
from workers.sandbox.images import ImageStore

__all__ = ["make_machine"]

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.timeout(400),
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() == 0, reason="sandboxes with walls refuse root"),
]

PLACING_POINTS = ("place_by_image",)
"""Where a worker is killed."""
NODES = ("n1", "n2", "n3")
SMALL = ("--init", "2", "--run", "8", "--eval", "1", "--no-supervisor")
JOBS = 14
"""Of one image at once: fewer than two nodes have RUN slots for."""
QUESTIONS = ROOT / "workers/handlers/code/problems/programs.jsonl"


@pytest.fixture
def images() -> Iterator[Path]:
    """A shared store with three images, bash and what it needs."""
    with TemporaryDirectory(prefix="rsi-", dir="/tmp") as made:
        folder = Path(made)
        store = ImageStore(folder / "shared", folder / "builder")
        store.node.open()
        for name in ("none", "one", "two"):
            store.pull(name, f"folder:{_a_system(folder / name, name)}")
        shutil.rmtree(folder / "builder")  # what these nodes have, they unpack themselves
        yield folder


def _a_system(folder: Path, name: str) -> Path:
    program = shutil.which("bash")
    assert program is not None
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [word for line in told.splitlines() for word in line.split() if word.startswith("/")]
    for path in (Path(program), *map(Path, libraries)):
        to = folder / ("bin/bash" if str(path) == program else str(path)[1:])
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path.resolve(), to)
    (folder / "name").write_text(name)
    return folder


def unpacked(machines: dict[str, Machine]) -> dict[str, set[str]]:
    """Nodes that have an image, by what the image says it is."""
    found: dict[str, set[str]] = {}
    for node, machine in machines.items():
        for meta in (machine.folder / "scratch/images").glob("*/meta.json"):
            found.setdefault((meta.parent / "rootfs/name").read_text(), set()).add(node)
    return found


def requests(image: str, jobs: int = JOBS) -> list[JobRequest]:
    """Jobs whose answer has no program, so that grading wants no sandbox."""
    row = json.loads(QUESTIONS.read_text(encoding="utf-8").splitlines()[1])
    options = {"tools": ["bash"], "image": image}
    return [
        JobRequest(
            id=f"{image}-{number}",
            task="code",
            capability="isolated",
            prompt=row,
            options=options,
            limits=LimitsRequest(max_turns=2, max_sampled_tokens=300),
        )
        for number in range(jobs)
    ]


async def all_done(run: Run, image: str, jobs: int = JOBS) -> None:
    """Each job has ended, once, and by no fault of ours."""
    ended = [result async for result in run.results(await run.submit(requests(image, jobs), wait_s=60.0), timeout_s=START_S)]
    assert Counter(result.job for result in ended) == Counter(f"images.{image}-{number}" for number in range(jobs))
    assert [(result.job, result.outcome, result.reason) for result in ended if result.outcome not in ("ok", "model_failure")] == []


async def test_two_nodes_at_most_unpack_an_image_and_a_lost_one_costs_what_ran_there(
    make_machine: Callable[[], Machine], images: Path, settings: QueueSettings, client: AsyncClient
) -> None:
    """A worker is killed right after it placed its first job, too: nobody misses that job."""
    keys = Keys.of_shard(settings.namespace, 0)
    quick = settings.model_copy(update={"lease_s": 8.0})
    once = images / "once"
    machines = {node: make_machine() for node in NODES}
    for node, machine in machines.items():
        machine.environment = {
            "ROLLSTREAM_SANDBOX_BACKEND": "bubblewrap",
            "ROLLSTREAM_IMAGE_SHARED_DIR": str(images / "shared"),
            "ROLLSTREAM_IMAGE_BUDGET_GIB": "1",
            "ROLLSTREAM_LEASE_S": "8",
            FAILPOINT: PLACING_POINTS[0],
            FAILPOINT_ONCE: str(once),
        }
        machine.start("--node", node, *SMALL)

    async def are_up() -> bool:
        views = [await read_node(client, settings, node) for node in NODES]
        for node in NODES:
            assert machines[node].launchers[0].poll() is None, log_tail(machines[node].log)
        return all(view is not None and view.state == "up" for view in views)

    async def have_init() -> bool:
        """INIT of each node reads the queue, also where it was killed."""
        for node in NODES:
            view = await read_node(client, settings, node)
            running = [str(each.pid) for each in view.processes if each.name == "init-0"] if view is not None else []
            pid = await ask(client, "HGET", keys.worker(f"init-{node}-0"), "pid")
            if pid is None or [pid.decode()] != running or not psutil.pid_exists(int(pid)):
                return False
        return True

    await wait_until(are_up, "three nodes are up", timeout_s=2 * START_S)

    options = ServerOptions(latency=Latency(first_token_s=0.3), policy=PolicyOptions(tool_rate=0.0))
    async with ScriptedServer(options, []) as model, connect(quick, run="images") as run:
        await InferencePool(client, settings.namespace, lease_s=quick.lease_s).attach("images", [Server(model.url)])

        await all_done(run, "none", 1)
        assert "once" in os.listdir(images)
        await wait_until(have_init, "INIT of all nodes is there again", timeout_s=START_S)

        await all_done(run, "one")
        await all_done(run, "two")

        found = unpacked(machines)
        assert set(found) == {"none", "one", "two"}
        assert max(map(len, found.values())) <= 2, found

    options = ServerOptions(latency=Latency(first_token_s=2.0), policy=PolicyOptions(tool_rate=0.0))
    async with ScriptedServer(options, []) as model, connect(quick, run="lost") as run:
        await InferencePool(client, settings.namespace, lease_s=quick.lease_s).attach("lost", [Server(model.url)])
        jobs = await run.submit(requests("one"), wait_s=60.0)
        held: dict[str, set[str]] = {}

        async def runs_somewhere() -> bool:
            for number in range(JOBS):
                job = f"lost.one-{number}"
                state, owner = await ask(client, "HMGET", keys.job(job), "st", "own")
                if state == b"running" and owner.startswith(b"run-"):
                    held.setdefault(owner.decode().split("-")[1], set()).add(job)
            return bool(held)

        await wait_until(runs_somewhere, "jobs run on a node", timeout_s=START_S)
        gone = next(iter(held))
        for process in (*machines[gone].launchers, *machines[gone].processes()):
            process.kill()

        ended = [result async for result in run.results(jobs, timeout_s=START_S)]

        assert Counter(result.job for result in ended) == Counter(f"lost.one-{number}" for number in range(JOBS))
        assert {result.outcome for result in ended} <= {"ok", "model_failure"}
        for number in range(JOBS):
            job = f"lost.one-{number}"
            lost, failed = await ask(client, "HMGET", keys.job(job), "lost", "failed")
            assert int(failed) == 0
            assert int(lost) <= 1
