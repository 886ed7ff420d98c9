"""Two runs of one seed on real processes train on the same bytes, although they race, are slow at random, and one loses a worker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest

from ops.child_processes import Child, ChildProcesses
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from trainer_client import LimitsRequest, SamplingRequest, Step, StepRequest, connect
from workers.handlers.math.handler import SAMPLES
from workers.handlers.math.layouts import LAYOUTS
from workers.handlers.task_data import load_rows

STEPS = 5
PROCESSES = 2
NODE = "n1"
LEASE_S = 2.0
REQUEST = StepRequest(
    task="math",
    groups=2,
    n=3,
    over=1.0,
    deterministic=True,
    run_seed=11,
    sampling=SamplingRequest(max_tokens=200),
    limits=LimitsRequest(max_turns=3, max_sampled_tokens=500, tool_timeout_s=15.0),
)
pytestmark = [pytest.mark.timeout(150), pytest.mark.one_server]


class Fleet:
    """Two processes a stage and two model servers, whose latencies are drawn by request: another job, attempt or run takes another time."""

    def __init__(self, settings: QueueSettings, client: AsyncClient, children: ChildProcesses, folder: Path) -> None:
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.sockets = [folder / f"llm{number}" for number in range(PROCESSES)]
        problems = str(SAMPLES[0])
        latency = ("--first-token-ms", "5", "--per-token-ms", "0.4", "--latency-sigma", "1.2", "--mean-steps", "2")
        kinds = ("--tool-rate", "0.04", "--all-right", "0.1", "--all-wrong", "0.1")
        for socket in self.sockets:
            children.start(socket.name, "workers.llm.scripted", "--socket", str(socket), *latency, *kinds, "--problems", problems)
        self.runners: list[Child] = []
        for stage in Stage:
            for index in range(PROCESSES):
                words = ("--stage", stage.value, "--node", NODE, "--index", str(index), "--slots", "6", "--grace-s", "1")
                child = children.start(f"{stage.value}{index}", "ops.cli", "worker", "run", *words)
                if stage is Stage.RUN:
                    self.runners.append(child)
        for index in range(PROCESSES):
            children.start(f"supervisor{index}", "ops.cli", "supervisor", "run", "--name", f"s{index}")

    async def listens(self) -> None:
        await wait_until(lambda: _all_there(self.sockets), "the models listen", timeout_s=30)

    async def update(self, run: str, label: str) -> None:
        """New weights: the logprobs of every token that is sampled from now on are others."""
        for socket in self.sockets:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
                session.post("http://llm/update_weight_version", json={"new_version": label}) as answer,
            ):
                assert answer.status == 200
        pool = InferencePool(self.client, self.settings.namespace, lease_s=self.settings.lease_s)
        await pool.attach(run, [Server(f"unix:{socket}", "", label, shared=True) for socket in self.sockets])

    async def kill_a_runner_at_work(self) -> None:
        """The second RUN process dies while it holds jobs."""
        await wait_until(lambda: self._holds(f"run-{NODE}-1"), "the RUN worker holds jobs", timeout_s=30)
        self.runners[1].asked_to_stop = True
        self.runners[1].process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.runners[1].process.wait)

    async def _holds(self, consumer: str) -> bool:
        for node in (NODE, ""):
            stream = self.keys.stage_stream(Stage.RUN, node=node)
            if await ask(self.client, "EXISTS", stream):
                rows = await ask(self.client, "XPENDING", stream, Stage.RUN.value, "-", "+", 64, consumer, parse_detail=True)
                if len(rows) >= 2:
                    return True
        return False


async def _all_there(sockets: Sequence[Path]) -> bool:
    return all(socket.exists() for socket in sockets)


@pytest.fixture
async def fleet(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Fleet]:
    with TemporaryDirectory(prefix="det-") as short:
        folder = Path(short)
        settings = settings.model_copy(update={"lease_s": LEASE_S})
        environment = {f"ROLLSTREAM_{name.upper()}_DIR": str(folder / name) for name in ("run", "data", "scratch", "state")}
        environment |= {"ROLLSTREAM_REDIS_URL": settings.redis_url, "ROLLSTREAM_NAMESPACE": settings.namespace}
        environment |= {"ROLLSTREAM_LEASE_S": str(LEASE_S), "ROLLSTREAM_RETRY_BACKOFF_S": "0.05", "ROLLSTREAM_SANDBOX_BACKEND": "process"}
        with ChildProcesses(tmp_path / "logs", environment) as children:
            fleet = Fleet(settings, client, children, folder)
            await fleet.listens()
            yield fleet
            children.check()


async def bytes_of(step: Step) -> list[object]:
    """All that a trainer could train on, in its order."""
    await step.fetch()
    found: list[object] = [step.index]
    for group in step.groups:
        found += [group.prompt_id, group.rewards, [dict(member.record.components) for member in group.members]]
        for member, trajectory in zip(group.members, await group.trajectories(), strict=True):
            found += [member.record.member, member.outcome.value, trajectory.stop.value, trajectory.answer]
            found += [(turn.seed, turn.start, turn.end, turn.finish, turn.server) for turn in trajectory.turns]
            for segment in trajectory.segments:
                arrays = (segment.token_ids, segment.sampled_mask, segment.loss_mask, segment.logprobs)
                found += [array.tobytes() for array in arrays] + list(segment.versions)
    return found


async def train(fleet: Fleet, run_id: str, *, kill_in_step: int = 0) -> list[list[object]]:
    """Takes the steps; returns their bytes."""
    trained: list[list[object]] = []
    rows = load_rows(SAMPLES[0], LAYOUTS).rows
    async with connect(fleet.settings, run=run_id) as run:
        assert run.incarnation == 1
        await fleet.update(run_id, "1.0")
        run.feed(rows, epochs=3, shuffle_seed=7)
        stream = run.steps(REQUEST, timeout_s=60)
        for index in range(1, STEPS + 1):
            asked = asyncio.ensure_future(anext(stream))
            if index == kill_in_step:
                await fleet.kill_a_runner_at_work()
            step = await asked
            trained.append(await bytes_of(step))
            await fleet.update(run_id, f"1.{index}")
            await step.ack()
    return trained


async def test_two_runs_agree_byte_for_byte(fleet: Fleet) -> None:
    first = await train(fleet, "det-a")
    second = await train(fleet, "another-name", kill_in_step=2)

    assert len(first) == STEPS
    for one, other in zip(first, second, strict=True):
        assert one == other
    assert len({repr(step[1:]) for step in first}) == STEPS
    prompts = [step[1] for step in first]
    assert len(set(prompts)) == STEPS
    assert {str(socket) for socket in fleet.sockets} == {
        server.removeprefix("unix:")
        for step in first
        for turn in step
        if isinstance(turn, tuple) and len(turn) == 5
        for server in [turn[4]]
    }
