"""The blocking facade: the same objects, driven from a thread without an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pipeline.errors import InvalidRequest, StaleIncarnation
from pipeline.messages import Outcome
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.trainer_client.pump import Pump
from trainer_client import GRPO, JobRequest, Manifest, StepRequest, WaitTimeout, connect, connect_blocking, connect_reader_blocking

pytestmark = pytest.mark.one_server
SPEC = StepRequest(task="math", groups=2, n=4)


async def test_a_training_loop_without_await(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    def train() -> list[str]:
        trained = []
        with connect_blocking(settings, run="plain") as run:
            run.feed([{"i": i} for i in range(6)])
            for step in run.steps(SPEC, timeout_s=20):
                for group in step.groups:
                    trained.append(group.prompt_id)
                    answers = [trajectory.answer for trajectory in group.trajectories()]
                    assert answers == [f"answer of {member.job}" for member in group.members]
                    assert group.members[0].grade().reward == group.rewards[0]
                assert step.metrics["groups_trained"] == len(step.groups)
                step.ack()
            assert run.state_dict()["next_step"] == 4
            assert run.next_step == 4
        return trained

    assert sorted(await asyncio.to_thread(train)) == [f"e0-{i}" for i in range(6)]


async def test_batches_without_await_on_the_rank_with_the_run_and_on_another(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    def train() -> None:
        with connect_blocking(settings, run="plain") as run, connect_reader_blocking(settings) as reader:
            run.feed([{"i": i} for i in range(6)])
            step = next(run.steps(SPEC, timeout_s=20))
            sent = step.manifest().to_bytes()
            own = step.batch(shard=(0, 2), advantage=GRPO(std=False), rows=4)
            other = reader.batch(Manifest.from_bytes(sent), shard=(1, 2), advantage=GRPO(std=False), rows=4)
            found = {rollout.job: rollout.advantage for batch in (own, other) for rollout in batch.rollouts}
            assert found == {rollout.job: rollout.advantage for rollout in step.rollouts(advantage=GRPO(std=False))}
            assert len(found) == 8
            assert [arrays.token_ids.shape for arrays in own.microbatches()] == [(4, 24)]
            step.ack()

    await asyncio.to_thread(train)


async def test_single_jobs_without_await(settings: QueueSettings, pump: Pump) -> None:
    def work() -> None:
        with connect_blocking(settings, run="plain") as run:
            jobs = run.submit([JobRequest(task="math", prompt={"i": i}) for i in range(5)])
            assert jobs[0].result(timeout_s=20).outcome is Outcome.OK
            results = list(run.results(jobs, timeout_s=20))
            assert sorted(result.job for result in results) == sorted(job.id for job in jobs)
            run.ack(results)
            assert run.statistics().outcomes == {"ok": 5}
            assert "blocking" in repr(run)
            assert "submit" in dir(run)

    await asyncio.to_thread(work)


async def test_errors_come_out_as_they_are_and_the_thread_ends(settings: QueueSettings) -> None:
    def work() -> None:
        with connect_blocking(settings, run="plain") as run:
            with pytest.raises(InvalidRequest, match="expected a JobRequest"):
                run.submit("no request")
            with pytest.raises(WaitTimeout, match=r"does not know job plain\.nobody"):
                run.job("plain.nobody").result(timeout_s=0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(work)
    assert not [thread for thread in threading.enumerate() if thread.name == "rollstream-client"]


async def test_a_run_that_cannot_be_taken_raises_on_entry(settings: QueueSettings) -> None:
    def work() -> None:
        with connect_blocking(settings, run="plain", resume={"nonsense": 1}):
            raise AssertionError("entered")

    with pytest.raises(InvalidRequest, match=r"expected what run.state_dict"):
        await asyncio.to_thread(work)
    assert not [thread for thread in threading.enumerate() if thread.name == "rollstream-client"]


async def test_a_fenced_trainer_hears_it_while_it_waits(settings: QueueSettings) -> None:
    taken = threading.Event()

    def work() -> None:
        with connect_blocking(settings.model_copy(update={"run_ttl_s": 1.0}), run="plain") as run:
            job = run.submit(JobRequest(task="math", prompt={"i": 1}))
            taken.set()
            job.result(timeout_s=20)

    old = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.to_thread(taken.wait)
    async with connect(settings, run="plain"):
        with pytest.raises(StaleIncarnation):
            await old
