"""What workers of the three stages count of real jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ops.child_processes import ChildProcesses
from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import Sampling, Stage, Trajectory
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import a_trajectory, wait_until
from tests.integration.stages.fleet import RUN, Fleet, Play, a_delta
from workers.handlers.base import Environment, RunContext, StageContext
from workers.llm.backend import GenRequest
from workers.sandbox import Isolation, SandboxSpec
from workers.sandbox.errors import SandboxError, SandboxStartError
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import served_here
from workers.stages.measures import BUCKETS, FILE_SUFFIX, PLACES, read_measures

pytestmark = pytest.mark.one_server


@pytest.fixture
async def fleet(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Fleet]:
    quick = settings.model_copy(update={"retry_backoff_s": 0.02, "retry_backoff_max_s": 0.1})
    fleet = Fleet(quick, client, tmp_path, measures=tmp_path / "measures")
    await fleet.connect()
    yield fleet
    await fleet.leave()


def counted(folder: Path, process: str, name: str, *labels: str) -> float:
    """A number of a process; of a histogram, how many it has seen."""
    (path,) = folder.glob(f"{process}.*{FILE_SUFFIX}")
    read = read_measures(path)
    assert read is not None
    at = PLACES[name, labels]
    return sum(read[at + 1 : at + 1 + BUCKETS]) if name.endswith("_seconds") else read[at]


async def test_attempts_are_counted_by_what_they_came_to(fleet: Fleet, tmp_path: Path) -> None:
    """One job does well; one breaks once in RUN, which sends it back to INIT, and is then graded."""
    folder, broke = tmp_path / "measures", [SandboxStartError("bubblewrap", "no room")]

    async def run(context: RunContext) -> Trajectory:
        if context.spec.job.endswith("breaks") and broke:
            raise broke.pop()
        await context.journal(a_delta(0))
        return a_trajectory()

    await fleet.add("well", "breaks")
    fleet.start(play=Play(on_run=run))
    await fleet.results(2)

    await wait_until(lambda: counted(folder, "eval-0", "busy_slots", "eval") == 0, "the last attempt is counted")
    assert counted(folder, "init-0", "attempts", "init", "handed_off") == 3
    assert counted(folder, "run-0", "attempts", "run", "failed") == 1
    assert counted(folder, "run-0", "attempts", "run", "handed_off") == 2
    assert counted(folder, "eval-0", "attempts", "eval", "ok") == 2
    assert [counted(folder, f"{stage}-0", "claims", stage) for stage in Stage] == [3, 3, 2]
    assert [counted(folder, f"{stage}-0", "retries", stage) for stage in Stage] == [1, 0, 0]
    assert [counted(folder, f"{stage}-0", "attempt_seconds", stage) for stage in Stage] == [3, 3, 2]
    assert [counted(folder, f"{stage}-0", "slots", stage) for stage in Stage] == [4, 4, 4]
    assert counted(folder, "run-0", "turn_seconds") == 2
    assert counted(folder, "run-0", "sampled_tokens") == 2 * int(a_trajectory().segments[0].sampled_mask.sum())


async def test_sandbox_starts_and_model_calls_are_counted_by_how_they_went(fleet: Fleet, client: AsyncClient, tmp_path: Path) -> None:
    folder = tmp_path / "measures"

    async def init(context: StageContext) -> Environment:
        await context.provider().start(SandboxSpec(isolation=Isolation.NONE), context.owner)
        with pytest.raises(SandboxError):
            await context.provider().start(SandboxSpec(isolation=Isolation.NONE, image="docker://not/there:1"), context.owner)
        return Environment()

    async def run(context: RunContext) -> Trajectory:
        for number in range(2):
            call = GenRequest(request_id=f"r{number}", prompt_ids=[5, 6], sampling=Sampling(), max_tokens=4, seed=1)
            await context.backend.generate(call, timeout_s=30)
        return a_trajectory()

    with TemporaryDirectory(prefix="rsm-") as short, ChildProcesses(tmp_path / "logs", {}) as children:
        run_dir = Path(short)
        children.start("model", "workers.llm.scripted", "--socket", str(run_dir / "model"))
        local = LocalSandboxes(ProcessBackend(), scratch_dir=tmp_path / "sandboxes", run_dir=run_dir, node="n1")
        async with served_here(local, run_dir) as sandboxes:
            await fleet.add("job")
            fleet.start(play=Play(on_init=init, on_run=run), sandboxes=sandboxes)
            await wait_until((run_dir / "model").exists, "the model server listens", timeout_s=30)
            await InferencePool(client, fleet.settings.namespace, lease_s=30.0).attach(
                RUN, [Server(f"unix:{run_dir / 'model'}", "", "1.0")]
            )
            await fleet.results(1, timeout_s=30)
            await wait_until(lambda: counted(folder, "eval-0", "busy_slots", "eval") == 0, "the last attempt is counted")

            starts = [counted(folder, "init-0", "sandbox_starts", result) for result in ("ok", "failed")]
            calls = [counted(folder, "run-0", "model_calls", result) for result in ("ok", "failed")]
            seen = counted(folder, "init-0", "sandbox_start_seconds"), counted(folder, "run-0", "model_call_seconds")
            await fleet.leave()

    assert (starts, calls, seen) == ([1, 1], [2, 0], (1, 2))
