"""What a trainer is told about all that it does not train on."""

from __future__ import annotations

from pipeline.settings import QueueSettings
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.loop import Supervisor
from pipeline.supervisor.monitors import LENGTH_FIGURES
from tests.integration.trainer_client.pump import Pump, half_of_prompts_alike
from tests.integration.trainer_client.rows import rows
from trainer_client import StepRequest, connect

RUN = "swe-7b"
SPEC = StepRequest(task="math", groups=3, n=4, ahead=0, keep_filtered=1.0)


async def test_a_step_tells_of_all_its_groups_and_still_does_after_the_ack(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    pump.rewarder = half_of_prompts_alike

    async with connect(settings, run=RUN) as run:
        run.feed(rows(30))
        async for step in run.steps(SPEC, count=1, timeout_s=20):
            before = step.all_groups
            await step.ack()
        statistics = await run.statistics()

    assert step.all_groups == before
    verdicts = [record.verdict for record in before]
    assert verdicts.count(Verdict.INFORMATIVE) == 3
    assert verdicts.count(Verdict.FILTERED) == step.record.filtered > 0
    for record in before:
        assert set(record.components) >= {"score"}
        assert [len(values) for values in record.components.values()] == [4] * len(record.components)
        assert sum(record.tokens.values()) == record.sampled_tokens
        assert record.age_s >= 0
        assert record.keeps_bodies is (record.verdict is Verdict.FILTERED)
    metrics = step.metrics
    assert metrics["tokens_kept"] + metrics["tokens_filtered"] == sum(record.sampled_tokens for record in before)
    assert set(LENGTH_FIGURES) | {"starved_share", "starved_prompts_s", "cancel_settled_s"} <= set(metrics)
    assert all(isinstance(value, float) for value in metrics.values())
    assert statistics.tokens["kept"] >= metrics["tokens_kept"]
    assert statistics.monitors.length.trained_members >= 12


async def test_trajectories_of_filtered_groups_that_are_kept_can_be_read(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    pump.rewarder = half_of_prompts_alike

    async with connect(settings, run=RUN) as run:
        run.feed(rows(30))
        step = await anext(run.steps(SPEC, count=1, timeout_s=20))
        kept = step.kept_groups
        trajectories = [trajectory for group in kept for trajectory in await group.trajectories()]

    assert [group.record.verdict for group in kept] == [Verdict.FILTERED] * step.record.filtered
    assert len(trajectories) == 4 * len(kept) > 0
