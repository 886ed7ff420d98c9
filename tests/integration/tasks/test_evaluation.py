"""An evaluation through the queue: each sample once, however often the command is stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.evaluation import Plan, ResultsFile, Standing, numbers_of, plan_of
from ops.evaluation.evaluate import evaluate
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump, pumping
from trainer_client import connect

ROWS_A_BATCH = 8
ROWS = [{"id": f"r{number}", "question": f"{number} + 1?", "answer": str(number + 1)} for number in range(2 * ROWS_A_BATCH + 2)]


@pytest.fixture
async def pump(scripts: Scripts) -> AsyncIterator[Pump]:
    """Workers that carry every job through; every second member is right."""
    async with pumping(Pump(scripts)) as pump:
        yield pump


@pytest.fixture
def plan() -> Plan:
    """Of three batches, the last one small."""
    plan = plan_of({"task": "math"}, ROWS, n=4, threshold=1.0, metric="score", run="evaluated", jobs_a_batch=4 * ROWS_A_BATCH)
    assert [len(batch.rows) for batch in plan.batches] == [ROWS_A_BATCH, ROWS_A_BATCH, 2]
    return plan


def header(plan: Plan) -> dict[str, object]:
    return {"task": plan.task, "digest": plan.digest, "n": plan.n}


async def go(settings: QueueSettings, plan: Plan, path: Path, told: list[Standing]) -> None:
    with ResultsFile(path, header(plan)) as results:
        async with connect(settings, run=plan.run) as run:
            await evaluate(run, plan, results, told=told.append, jobs_at_once=2 * 4 * ROWS_A_BATCH)


async def bodies(client: AsyncClient, keys: Keys) -> set[str]:
    """Jobs whose grade Redis has."""
    found = [keys.short(key.decode()) for key in await ask(client, "KEYS", f"{keys.tag}:b:*:eval")]
    return {key.split(":")[1] for key in found}


async def stopped(task: asyncio.Task[None]) -> None:
    """As by Ctrl-C; what it raised before shows."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_stopped_goes_on_and_no_sample_is_drawn_twice(
    settings: QueueSettings, pump: Pump, plan: Plan, tmp_path: Path, client: AsyncClient, keys: Keys
) -> None:
    """Stopped twice: in a batch of which all but one job have ended, and after two batches are written."""
    path, told = tmp_path / "r.jsonl", list[Standing]()
    first_two = [set(batch.names) for batch in plan.batches[:2]]  # which of them is asked for first is up to the loop
    pump.held_back = {f"{plan.run}.v1-5.0.2", f"{plan.run}.v3-1.0.0"}

    async def is_at(batches: int, ended: int, task: asyncio.Task[None]) -> bool:
        """Whether so many batches are written and let go of, and so many samples have ended."""
        written = path.exists() and path.read_bytes().count(b"\n") == 1 + batches * ROWS_A_BATCH
        return task.done() or (
            written and len(pump.ended) == ended and len(await bodies(client, keys)) == ended - batches * 4 * ROWS_A_BATCH
        )

    first = asyncio.create_task(go(settings, plan, path, told))
    await wait_until(lambda: is_at(1, plan.n_jobs - 2, first), "all that can end has ended, and a batch is written", timeout_s=60)
    await stopped(first)
    with ResultsFile(path, header(plan)) as written:
        assert set(written.rows) in first_two

    second = asyncio.create_task(go(settings, plan, path, told))
    pump.held_back = {f"{plan.run}.v3-1.0.0"}
    await wait_until(lambda: is_at(2, plan.n_jobs - 1, second), "two batches are written", timeout_s=60)
    await stopped(second)
    with ResultsFile(path, header(plan)) as written:
        assert set(written.rows) == first_two[0] | first_two[1]
    pump.held_back = set()
    await go(settings, plan, path, told)

    assert max(Counter(pump.ended).values()) == 1
    assert len(pump.ended) == plan.n_jobs
    with ResultsFile(path, header(plan)) as results:
        assert set(results.rows) == {row["id"] for row in ROWS}
        numbers = numbers_of([*results.rows.values()], ks=(1, 4), rows_asked=plan.n_rows)
        samples = [sample for row in results.rows.values() for sample in row.samples]
    assert all(sample["answer"] == f"answer of {sample['job']}" for sample in samples)
    assert numbers.is_whole
    assert (numbers.estimates["pass@1"].value, numbers.estimates["pass@4"].value) == (0.5, 1.0)
    assert (numbers.valid, numbers.asked, numbers.sampled_tokens) == (plan.n_jobs, plan.n_jobs, 7 * plan.n_jobs)
    assert await bodies(client, keys) == set()  # Redis has let go of what was written


async def test_rows_are_written_as_they_become_whole(settings: QueueSettings, pump: Pump, tmp_path: Path) -> None:
    """None was written before 512 samples had ended, and who stopped the command before that had nothing."""
    plan = plan_of({"task": "math"}, ROWS[:6], n=16, threshold=1.0, metric="score", run="seen")
    pump.held_back = {f"{plan.run}.v1-0.0.7"}
    told: list[Standing] = []

    with ResultsFile(tmp_path / "r.jsonl", header(plan)) as results:
        async with connect(settings, run=plan.run) as run:
            work = asyncio.create_task(evaluate(run, plan, results, told=told.append))
            await wait_until(
                lambda: work.done() or (bool(told) and told[-1].rows_done == 5),
                "all rows but the one whose sample is held back are written",
                timeout_s=60,
            )
            assert (len(results.rows), told[-1].n_valid, told[-1].n_passed) == (5, 80, 40)
            pump.held_back = set()
            await work

    assert len(results.rows) == 6


async def test_samples_that_broke_have_no_score_and_say_why(settings: QueueSettings, pump: Pump, tmp_path: Path) -> None:
    plan = plan_of({"task": "math", "max_failed": 0, "max_redraws": 1}, ROWS[:2], n=2, threshold=1.0, metric="score", run="broken")
    pump.rewarder = lambda job: None if ".v1-1." in job else 1.0
    told: list[Standing] = []

    await go(settings, plan, tmp_path / "r.jsonl", told)

    with ResultsFile(tmp_path / "r.jsonl", header(plan)) as results:
        numbers = numbers_of([*results.rows.values()], ks=(1, 2), rows_asked=2)
        assert results.rows["r1"].scores == (None, None)
        assert [sample["drawn_again"] for sample in results.rows["r1"].samples] == [1, 1]
    assert (numbers.valid, numbers.asked, list(numbers.why_invalid.values())) == (2, 4, [2])
    assert (numbers.estimates["pass@2"].value, numbers.estimates["pass@2"].prompts) == (1.0, 1)
