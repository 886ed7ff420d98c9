"""The numbers of one step, flat, under the same names in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.messages import JobResult
from pipeline.supervisor.monitors import LENGTH_FIGURES
from pipeline.supervisor.shortage import Shortage
from trainer_client.member_metrics import TRAINED_OR_FILTERED, age_metrics, mean, outside_metrics, ratio, reward_metrics, trained_metrics
from trainer_client.records import GroupRecord, StepRecord


def step_metrics(
    record: StepRecord,
    *,
    counted: Sequence[GroupRecord],
    everyone: Mapping[str, Sequence[JobResult]],
    trained: Sequence[JobResult],
    rewards: Sequence[float],
    missing: int,
    staleness: Sequence[int | None],
    waited_s: float,
) -> dict[str, float]:
    """Numbers of a step.

    Args:
        counted: records of all groups accounted to it, trained or not.
        everyone: records of their members, by group.
        trained: records of the members of trained groups that count.
        rewards: their rewards.
        missing: members of trained groups that are outside their statistics.
        staleness: of each trained group.
        waited_s: how long the trainer waited for the step.

    Returns:
        `groups_*` and `members_*` counts; `reward_mean` over trained members, `reward_mean_all` over trained and filtered groups, both
        also a component (`reward_metrics`); what trained members are like (`trained_metrics`); failures, retries and what was cancelled
        (`outside_metrics`); `staleness_*` (`age_metrics`); `tokens_*` sampled tokens by what became of them (`TokenFate`),
        `tokens_per_s_trained` and `tokens_per_s` of them all over `took_s`, from opened to reached; `trainer_wait_s`; `cancel_settled_s`
        from a target to the end of the last member that it cancelled; `starved_*`, `length_*` and `age_*` as the monitors said when it
        was reached.
    """
    trained_groups = [group for group in counted if group.group in set(record.groups)]
    tokens = {
        "tokens_kept": float(record.tokens_kept),
        "tokens_filtered": float(record.tokens_filtered),
        "tokens_cancelled": float(record.tokens_cancelled),
        "tokens_failed": float(record.tokens_failed),
        "tokens_surplus": float(record.tokens_surplus),
        "tokens_stale": float(record.tokens_stale),
        "tokens_late": float(record.tokens_late),
    }
    numbers = {
        "groups_trained": float(len(record.groups)),
        "groups_target": float(record.target),
        "groups_filtered": float(record.filtered),
        "groups_dropped": float(record.dropped),
        "groups_dead": float(record.dead),
        "groups_cancelled": float(record.cancelled),
        "groups_surplus": float(record.surplus),
        "groups_stale": float(record.stale),
        "groups_redundant": float(record.redundant),
        "groups_filtered_share": ratio(record.filtered, record.filtered + len(record.groups)),
        "members_trained": float(len(trained)),
        "members_missing": float(missing),
        "reward_mean": mean(rewards),
        "reward_mean_all": mean(group.mean for group in counted if group.verdict in TRAINED_OR_FILTERED and group.mean is not None),
        "tokens_per_s_trained": ratio(sum(member.sampled_tokens for member in trained), record.took_s),
        "tokens_per_s": ratio(sum(tokens.values()), record.took_s),
        "cancel_settled_s": record.cancel_settled_s or 0.0,
        "took_s": record.took_s,
        "trainer_wait_s": waited_s,
    }
    numbers |= tokens | reward_metrics(counted, trained_groups) | trained_metrics(trained) | outside_metrics(everyone, trained)
    numbers |= age_metrics(staleness) | {f"starved_{why}_s": record.starvation.short_s.get(why, 0.0) for why in Shortage}
    return numbers | record.starvation.figures() | dict.fromkeys(LENGTH_FIGURES, 0.0) | dict(record.monitors)


__all__ = ["step_metrics"]
