"""Prompts in, steps out: with the real supervisor, and workers that carry every job through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.errors import DamagedBody, InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump, half_of_prompts_alike, trajectory_of
from tests.integration.trainer_client.rows import rows
from trainer_client import BodyMissing, StepRequest, WaitTimeout, connect

RUN = "swe-7b"
SPEC = StepRequest(task="math", groups=2, n=4, ahead=1)


async def test_steps_come_in_order_each_with_its_target_of_groups(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(40), shuffle_seed=7)

        steps = [step async for step in run.steps(SPEC, start=1, count=3, timeout_s=20)]

        assert [step.index for step in steps] == [1, 2, 3]
        prompts = [group.prompt_id for step in steps for group in step.groups]
        assert len(prompts) == len(set(prompts)) == 6
        for group in steps[1].groups:
            assert group.rewards == (0.0, 1.0, 0.0, 1.0)
            assert [member.record.member for member in group.members] == [0, 1, 2, 3]
            row = int(group.prompt_id.partition("-")[2])
            assert (await group.prompt()).data == rows(40)[row]
            for member, trajectory in zip(group.members, await group.trajectories(), strict=True):
                assert np.array_equal(trajectory.segments[0].token_ids, trajectory_of(member.job).segments[0].token_ids)


async def test_filtered_prompts_are_replaced_and_counted(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    pump.rewarder = half_of_prompts_alike

    async with connect(settings, run=RUN) as run:
        feed = run.feed(rows(30))
        trained: list[int] = []
        filtered = 0.0
        async for step in run.steps(SPEC, timeout_s=20):
            trained += [int(group.prompt_id.partition("-")[2]) for group in step.groups]
            filtered += step.metrics["groups_filtered"]
            await step.ack()
        statistics = await run.statistics()

    assert feed.ended.is_set()
    assert sorted(trained) == list(range(0, 30, 2))
    assert statistics.prompts == {"pushed": 30, "trained": 15, "filtered": 15}
    assert 0 < filtered <= 15
    assert statistics.in_flight == 0


async def test_the_last_step_of_an_epoch_is_short_and_the_steps_end(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(5), epochs=1)

        steps = [step async for step in run.steps(SPEC, timeout_s=20)]
        again = [step async for step in run.steps(SPEC, start=3, timeout_s=20)]
        after = [step async for step in run.steps(SPEC, start=4, timeout_s=20)]

        assert [(step.index, len(step.groups), step.is_short) for step in steps] == [(1, 2, False), (2, 2, False), (3, 1, True)]
        assert ([step.index for step in again], after) == ([3], [])


async def test_every_prompt_of_every_epoch_is_trained_once(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    def lazily() -> Iterator[dict[str, object]]:
        yield from rows(3)

    class Stream:
        def __iter__(self) -> Iterator[dict[str, object]]:
            return lazily()

    async with connect(settings, run=RUN) as run:
        run.feed(Stream(), epochs=2)

        prompts = [group.prompt_id async for step in run.steps(SPEC, timeout_s=20) for group in step.groups]

    assert sorted(prompts) == ["e0-0", "e0-1", "e0-2", "e1-0", "e1-1", "e1-2"]


async def test_an_acked_step_leaves_no_job_no_group_and_no_body(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    pump.rewarder = half_of_prompts_alike

    async with connect(settings, run=RUN) as run:
        run.feed(rows(8))
        async for step in run.steps(SPEC, timeout_s=20):
            last = step
            await step.ack()
            await step.ack()
        group = last.groups[0]
        with pytest.raises(BodyMissing, match="acked"):
            await group.prompt()

        async def nothing_left() -> bool:
            return not await _left(client, keys)

        await wait_until(nothing_left, "all jobs, groups and bodies are gone")


async def _left(client: AsyncClient, keys: Keys) -> list[str]:
    found = [keys.short(key.decode()) async for key in client.scan_iter(match=keys.key("*"), count=1000)]
    entries = await ask(client, "XLEN", keys.results(RUN))
    return [key for key in found if key.partition(":")[0] in ("j", "g", "b")] + ["entry"] * entries


async def test_metrics_are_flat_numbers_that_agree_with_the_groups(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(20))
        step = await anext(run.steps(SPEC, timeout_s=20))
        metrics = step.metrics

    assert all(isinstance(value, float) for value in metrics.values())
    assert (metrics["groups_trained"], metrics["members_trained"], metrics["reward_mean"]) == (2.0, 8.0, 0.5)
    assert (metrics["tokens_kept"], metrics["sampled_tokens_mean"]) == (56.0, 7.0)
    assert metrics["took_s"] > 0


@pytest.mark.one_server
async def test_members_that_infrastructure_broke_are_outside_the_group(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    pump.rewarder = lambda job: None if job.endswith(".3") else float(int(job[-1]) % 2)

    async with connect(settings, run=RUN) as run:
        run.feed(rows(20))
        step = await anext(run.steps(SPEC, timeout_s=20))

    for group in step.groups:
        assert [member.record.member for member in group.members] == [0, 1, 2]
        assert [member.record.member for member in group.others] == [3]
        assert group.rewards == (0.0, 1.0, 0.0)
    assert step.metrics["members_missing"] == 2.0


@pytest.mark.one_server
async def test_a_damaged_trajectory_spoils_no_other(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient
) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(20))
        step = await anext(run.steps(SPEC, timeout_s=20))
        bad, good = step.groups[0].members[:2]
        await ask(client, "SET", bad.trajectory_key, b"\x00damaged", "KEEPTTL")

        await step.fetch()

        with pytest.raises(DamagedBody):
            await bad.trajectory()
        with pytest.raises(DamagedBody):
            await step.groups[0].trajectories()
        assert (await good.trajectory()).answer == f"answer of {good.job}"
        assert len(await step.groups[1].trajectories()) == 4


@pytest.mark.one_server
async def test_the_reserve_is_bounded_and_the_data_set_read_no_further(settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    read: list[int] = []

    def endless() -> Iterator[dict[str, object]]:
        for i in range(10_000):
            read.append(i)
            yield {"i": i}

    async with connect(settings, run=RUN) as run:
        feed = run.feed(endless(), reserve=50)

        async def is_full() -> bool:
            return int(await ask(client, "ZCARD", keys.reserve(RUN))) == 50

        await wait_until(is_full, "the reserve is full")

    assert (feed.pushed, len(read)) == (50, 50)


@pytest.mark.one_server
async def test_a_row_that_cannot_be_fed_is_said_with_the_next_step(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed([{"question": "fine"}, {"question": "also fine"}, {"question": {1, 2}}])

        with pytest.raises(InvalidRequest, match=r"dataset\[2\]: expected plain values .* got set at 'question'"):
            async for _ in run.steps(SPEC, timeout_s=20):
                pass


@pytest.mark.one_server
async def test_a_data_set_that_raises_is_said_with_its_own_error(settings: QueueSettings, supervisor: Supervisor) -> None:
    def broken() -> Iterator[dict[str, object]]:
        yield {"question": "fine"}
        raise OSError("the disk is gone")

    async with connect(settings, run=RUN) as run:
        run.feed(broken())

        with pytest.raises(OSError, match="the disk is gone"):
            await anext(run.steps(SPEC, timeout_s=20))


async def test_a_step_that_does_not_come_says_that_the_reserve_is_empty(settings: QueueSettings, supervisor: Supervisor) -> None:
    async with connect(settings, run=RUN) as run:
        with pytest.raises(WaitTimeout, match=r"step 1: nothing after .* The reserve is empty: feed prompts"):
            await anext(run.steps(SPEC, timeout_s=0.05))


async def test_a_step_that_does_not_come_says_that_no_supervisor_draws(settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    async with connect(settings, run=RUN) as run:
        feed = run.feed(rows(3))
        await wait_until(feed.ended.is_set, "all was fed")

        with pytest.raises(WaitTimeout, match="No supervisor is alive, and 3 prompts in the reserve are not drawn: start one"):
            await anext(run.steps(SPEC, timeout_s=0.05))

        await ask(client, "HSET", keys.run(RUN), "paused", "1")
        paused, absent = await run.why_waiting()
        assert paused.startswith("The run is paused: nothing is admitted")
        assert absent.startswith("No supervisor is alive: start one"), "that nothing is drawn has another cause"


async def test_a_step_that_does_not_come_says_what_its_groups_fell_to(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    """A grader that breaks on half of all answers uses up prompts while the trainer waits; it was told their number only."""
    pump.rewarder = lambda job: 1.0 if int(job.rpartition(".")[2]) < 2 else None

    async with connect(settings, run=RUN) as run:
        run.feed(rows(3))
        with pytest.raises(WaitTimeout, match=r"were dropped \(2 of 4 valid, 3 needed: infra_failure 2\): rollstream job show \S+\.0 "):
            await anext(run.steps(SPEC.model_copy(update={"max_redraws": 1000}), timeout_s=2.0))


async def test_a_step_that_does_not_come_says_which_stage_has_no_worker(settings: QueueSettings, supervisor: Supervisor) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(20))
        with pytest.raises(WaitTimeout, match=r"No worker of stage INIT is alive, and \d+ jobs? waits? there: .* Step 1 has 0 of 2 groups"):
            await anext(run.steps(SPEC, timeout_s=1.0))

        assert any("No worker of stage INIT" in reason for reason in await run.why_waiting())


@pytest.mark.one_server
async def test_wrong_use_gets_a_sentence_that_says_what_to_do(settings: QueueSettings) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(3))
        for wrong, sentence in (
            (lambda: run.feed(rows(3)), "expected one feed a run"),
            (lambda: run.steps(SPEC, count=0), "count: expected a whole number from 1"),
            (lambda: run.steps(SPEC, timeout_s=float("nan")), "timeout_s: expected seconds"),
            (lambda: run.job("other.x"), "expected the id of a job of run 'swe-7b'"),
        ):
            with pytest.raises(InvalidRequest, match=sentence):
                wrong()
    for arguments, sentence in (
        ({"run": "SWE 7B"}, "run: expected 1 to 48 of a-z"),
        ({"run": RUN, "weight": 0}, "weight: expected a number, from 0.001"),
        ({"run": RUN, "resume": {"step": 3}}, "resume: expected what run.state_dict"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            await connect(settings, **arguments).__aenter__()
