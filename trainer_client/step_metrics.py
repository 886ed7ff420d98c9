"""The numbers of one step, flat, under the same names in every step."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from pipeline.messages import JobResult
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.monitors import LENGTH_FIGURES
from pipeline.supervisor.shortage import Shortage
from trainer_client.records import GroupRecord, StepRecord

TRAINED_OR_FILTERED = (Verdict.INFORMATIVE, Verdict.FILTERED)
STAGES = ("init", "run", "eval", "total")


def step_metrics(
    record: StepRecord, counted: Sequence[GroupRecord], members: Sequence[JobResult], rewards: Sequence[float], missing: int
) -> dict[str, float]:
    """Numbers of a step.

    Args:
        counted: records of all groups accounted to it, trained or not.
        members: records of the trained members.
        rewards: their rewards.
        missing: members of trained groups that are outside their statistics.

    Returns:
        `groups_*` and `members_*` counts; `reward_mean` over trained members, `reward_mean_all` over trained and filtered groups;
        `tokens_*` sampled tokens by what became of them (`TokenFate`); `sampled_tokens_*`, `turns_mean` and `seconds_<stage>_mean` a
        trained member; `took_s` from opened to reached; `cancel_settled_s` from a target to the end of the last member that it cancelled;
        `starved_*`, `length_*` and `age_*` as the monitors said when it was reached.
    """
    lengths = [member.sampled_tokens for member in members]
    trained = len(record.groups)
    numbers = {
        "groups_trained": float(trained),
        "groups_target": float(record.target),
        "groups_filtered": float(record.filtered),
        "groups_dropped": float(record.dropped),
        "groups_dead": float(record.dead),
        "groups_cancelled": float(record.cancelled),
        "groups_surplus": float(record.surplus),
        "groups_stale": float(record.stale),
        "groups_redundant": float(record.redundant),
        "groups_filtered_share": record.filtered / max(1, record.filtered + trained),
        "members_trained": float(len(members)),
        "members_missing": float(missing),
        "reward_mean": _mean(rewards),
        "reward_mean_all": _mean([group.mean for group in counted if group.verdict in TRAINED_OR_FILTERED and group.mean is not None]),
        "tokens_kept": float(record.tokens_kept),
        "tokens_filtered": float(record.tokens_filtered),
        "tokens_cancelled": float(record.tokens_cancelled),
        "tokens_failed": float(record.tokens_failed),
        "tokens_surplus": float(record.tokens_surplus),
        "tokens_stale": float(record.tokens_stale),
        "tokens_late": float(record.tokens_late),
        "cancel_settled_s": record.cancel_settled_s or 0.0,
        "sampled_tokens_mean": _mean(lengths),
        "sampled_tokens_max": float(max(lengths, default=0)),
        "turns_mean": _mean([member.turns for member in members]),
        "took_s": record.took_s,
    }
    numbers |= {f"starved_{why}_s": record.starvation.short_s.get(why, 0.0) for why in Shortage}
    numbers |= record.starvation.figures() | dict.fromkeys(LENGTH_FIGURES, 0.0) | dict(record.monitors)
    return numbers | {f"seconds_{stage}_mean": _mean([member.seconds.get(stage, 0.0) for member in members]) for stage in STAGES}


def _mean(values: Iterable[float]) -> float:
    """Mean, 0 of nothing: a metric has a value in every step."""
    found = list(values)
    return statistics.fmean(found) if found else 0.0
