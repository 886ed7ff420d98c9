"""What workers of the three stages count of real jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.messages import Stage, Trajectory
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import a_trajectory, wait_until
from tests.integration.stages.fleet import Fleet, Play, a_delta
from workers.handlers.base import RunContext
from workers.sandbox.errors import SandboxStartError
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
