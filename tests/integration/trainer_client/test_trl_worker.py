"""The worker that TRL's asynchronous trainer is given, on a real run: rows in order, acks behind what is trained, errors where TRL looks.

The tests are the trainer: they take rows from the buffer and set versions, as TRL does.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump
from trainer_client import StepRequest, connect_blocking
from trainer_client.adapters.trl_worker import TrlWorker

pytestmark = pytest.mark.one_server
SPEC = StepRequest(task="math", groups=1, n=4, max_staleness=8)


async def test_rows_come_in_groups_and_steps_are_acked_two_versions_after_their_last_row(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    """A trainer that died before would lose rows that it took and did not train."""

    def train() -> None:
        with connect_blocking(settings, run="trl") as run:
            run.feed([{"i": i} for i in range(6)])
            worker = TrlWorker(run, SPEC, max_rows=3)  # less than a group: the worker waits for room
            worker.start()
            rows = [worker.rollout_buffer.get(timeout=20) for _ in range(8)]
            assert [row.group_id for row in rows] == [rows[0].group_id] * 4 + [rows[4].group_id] * 4
            assert rows[0].group_id != rows[4].group_id
            assert sorted(row.advantage for row in rows[:4]) == pytest.approx([-1, -1, 1, 1], abs=1e-6)
            assert worker.metrics_queue.get(timeout=20)["groups_trained"] == 1.0
            worker.update_model_version(1)
            worker.update_model_version(2)
            waits_for(lambda: run.next_step == 3, "both steps are acked")
            worker.check_health(60.0)
            worker.stop()
        with connect_blocking(settings, run="trl") as run:
            run.feed([{"i": i} for i in range(6)])
            again = TrlWorker(run, SPEC)
            again.start()
            left = [again.rollout_buffer.get(timeout=20) for _ in range(16)]
            assert len({row.group_id for row in left} | {row.group_id for row in rows}) == 6, "each prompt once, over both"
            assert not {row.group_id for row in left} & {row.group_id for row in rows}
            again.stop()

    await asyncio.to_thread(train)


async def test_what_is_not_trained_is_not_acked(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    def train() -> set[int]:
        with connect_blocking(settings, run="trl") as run:
            run.feed([{"i": i} for i in range(3)])
            worker = TrlWorker(run, SPEC)
            worker.start()
            rows = [worker.rollout_buffer.get(timeout=20) for _ in range(12)]
            worker.update_model_version(1)  # one version: TRL may have taken the rows ahead
            worker.stop()
            assert run.next_step is None
        return {row.group_id for row in rows}

    first = await asyncio.to_thread(train)
    assert await asyncio.to_thread(train) == first


async def test_what_ends_the_worker_is_raised_where_trl_looks(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    def train() -> None:
        with connect_blocking(settings, run="trl") as run:
            run.feed(bad_rows())
            worker = TrlWorker(run, SPEC)
            worker.start()
            waits_for(lambda: raises(worker, 60.0), "the worker ended")
            with pytest.raises(RuntimeError, match="has ended: row 2 is broken"):
                worker.check_health(60.0)
            worker.stop()

    await asyncio.to_thread(train)


async def test_a_worker_that_gets_nothing_says_why(settings: QueueSettings) -> None:
    def train() -> None:
        with connect_blocking(settings, run="trl") as run:
            run.feed([{"i": 0}])
            worker = TrlWorker(run, SPEC)
            worker.start()
            with pytest.raises(RuntimeError, match="no step for"):
                worker.check_health(-1.0)
            worker.stop()

    await asyncio.to_thread(train)


def bad_rows() -> Any:
    yield {"i": 0}
    yield {"i": 1}
    raise ValueError("row 2 is broken")


def raises(worker: TrlWorker, stale_after_s: float) -> bool:
    try:
        worker.check_health(stale_after_s)
    except RuntimeError:
        return True
    return False


def waits_for(condition: Any, what: str) -> None:
    asyncio.run(wait_until(condition, what, timeout_s=20))
