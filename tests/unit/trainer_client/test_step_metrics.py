"""The numbers of a step: each by hand, and the same names whatever the step holds."""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from pipeline.messages import JobResult, Outcome, SegmentSize, TrajectoryCounts
from pipeline.supervisor.actions import Verdict
from tests.unit.trainer_client.run_records import a_closed_group, a_job_record, a_step_record
from trainer_client.member_metrics import CAUSES, age_metrics, cause_of, outside_metrics, quantile, reward_metrics, trained_metrics
from trainer_client.step_metrics import step_metrics


def a_member(**changes: object) -> JobResult:
    ended = {"turns": 2, "sampled_tokens": 10, "spent_tokens": 10, "total_tokens": 30}
    times = {"seconds": {"init": 0.5, "run": 2.0, "total": 4.0}, "waits": {"init": 0.1, "run": 0.2, "eval": 0.3}}
    return a_job_record("r.e0-1.0.0", **{**ended, **times, **changes})


def test_rewards_are_told_by_component_over_trained_and_over_all_judged_groups() -> None:
    trained = a_closed_group(Verdict.INFORMATIVE, components={"score": (1.0, 0.0), "format": (1.0, None)})
    solved = a_closed_group(Verdict.FILTERED, components={"score": (1.0, 1.0), "format": (0.0, 0.0)})
    failed = a_closed_group(Verdict.FILTERED, values=(0.0, None))
    dropped = a_closed_group(Verdict.DROPPED, components={"score": (None, 0.0)})

    numbers = reward_metrics([trained, solved, failed, dropped], [trained])

    assert numbers == {
        "reward_score_mean": 0.5,
        "reward_score_mean_all": pytest.approx(3 / 5),
        "reward_format_mean": 1.0,
        "reward_format_mean_all": pytest.approx(1 / 3),
        "groups_solved_all": 1.0,
        "groups_solved_none": 1.0,
    }


def test_what_trained_members_are_like() -> None:
    counts = TrajectoryCounts(tool_calls=4, tool_errors=1, prompt_tokens=80, cached_tokens=60, neg_logprob=5.0)
    sizes = (SegmentSize(tokens=20, loss_tokens=5), SegmentSize(tokens=10, loss_tokens=5))
    members = [
        a_member(counts=counts, segments=sizes),
        a_member(stop="tokens", sampled_tokens=30, turns=6, counts=TrajectoryCounts(neg_logprob=35.0), waits={"init": 0.3}),
    ]

    numbers = trained_metrics(members)

    assert numbers["neg_logprob_mean"] == 1.0
    assert (numbers["turns_mean"], numbers["turns_p50"], numbers["turns_max"]) == (4.0, 6.0, 6.0)
    assert (numbers["sampled_tokens_mean"], numbers["sampled_tokens_p95"]) == (20.0, 30.0)
    assert (numbers["segments_mean"], numbers["segments_max"]) == (2.0, 2.0), "one whose record does not say is not counted as none"
    assert (numbers["stop_finished_share"], numbers["stop_tokens_share"], numbers["stop_stuck_share"]) == (0.5, 0.5, 0.0)
    assert (numbers["tool_calls_mean"], numbers["tool_errors_share"], numbers["prefix_hits_share"]) == (2.0, 0.25, 0.75)
    assert (numbers["wait_init_s_mean"], numbers["wait_eval_s_mean"], numbers["seconds_run_mean"]) == (0.2, 0.3, 2.0)


def test_what_broke_and_what_was_cut_is_told_of_all_groups() -> None:
    broke = a_member(outcome=Outcome.INFRA_FAILURE, reason="sandbox: SandboxGone: it died", attempt=5)
    lost = a_member(outcome=Outcome.INFRA_FAILURE, reason="lost 6 times, last in run by n1#7", waits={"init": 0.1, "run": 0.0}, attempt=7)
    cut = a_member(outcome=Outcome.CANCELLED, reason="redundant", spent_tokens=40, attempt=2, waits={"init": 0.1, "run": 0.1})
    waiting = a_member(outcome=Outcome.CANCELLED, reason="redundant", spent_tokens=0, attempt=0, waits={})

    numbers = outside_metrics({"a": [broke, lost], "b": [cut, waiting]}, [a_member(sampled_tokens=20)])

    assert (numbers["infra_failures"], numbers["infra_failures_sandbox"], numbers["infra_failures_lost"]) == (2.0, 1.0, 1.0)
    assert numbers["members_retried"] == 2.0
    assert (numbers["members_cancelled"], numbers["cancelled_tokens_mean"], numbers["cancelled_to_trained_length"]) == (2.0, 40.0, 2.0)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("grader: GraderError: no", "grader"),
        ("reward_missing", "reward"),
        ("lost 2 times, last in run by ?", "lost"),
        ("its hash is gone", "other"),
    ],
)
def test_a_cause_is_one_of_a_closed_list(reason: str, cause: str) -> None:
    assert cause_of(reason) == cause
    assert cause in CAUSES


def test_ages_of_groups_are_a_histogram() -> None:
    numbers = age_metrics([0, 1, 1, 7, None])

    assert [numbers[f"staleness_{age}"] for age in (0, 1, 2, 3, "older", "unknown")] == [1.0, 2.0, 0.0, 0.0, 1.0, 1.0]
    assert (numbers["staleness_mean"], numbers["staleness_max"]) == (2.25, 7.0)


def test_an_empty_step_has_the_names_of_a_full_one_and_only_numbers() -> None:
    group = a_closed_group(Verdict.INFORMATIVE, values=(1.0, 0.0))
    member = a_member(counts=TrajectoryCounts(neg_logprob=1.0))
    full = step_metrics(
        a_step_record(groups=(group.group,), tokens_kept=30, tokens_filtered=10),
        counted=[group],
        everyone={group.group: [member]},
        trained=[member],
        rewards=[1.0, 0.0],
        missing=1,
        staleness=[0],
        waited_s=0.5,
    )
    empty = nothing()

    assert empty.keys() == full.keys()
    assert all(math.isfinite(value) and type(value) is float for value in [*full.values(), *empty.values()])
    assert (full["tokens_per_s"], full["tokens_per_s_trained"], full["trainer_wait_s"]) == (20.0, 5.0, 0.5)


def nothing() -> dict[str, float]:
    """The numbers of a step that has nothing."""
    return step_metrics(a_step_record(), counted=[], everyone={}, trained=[], rewards=[], missing=0, staleness=[], waited_s=0.0)


def test_the_page_of_numbers_has_every_name() -> None:
    """`docs/reference/step-metrics.md` has names with parts in angle brackets, or in braces, for several."""
    page = (Path(__file__).parents[3] / "docs/reference/step-metrics.md").read_text(encoding="utf-8")
    told: set[str] = set()
    for name in re.findall(r"`([a-z_0-9<>{},]+)`", page):
        braces = re.search(r"\{(.+?)\}", name)
        for part in braces[1].split(",") if braces else [""]:
            told.add(re.sub(r"<[a-z]+>", "*", name if braces is None else name.replace(braces[0], part)))

    missing = [name for name in nothing() if not any(fnmatchcase(name, pattern) for pattern in told)]

    assert not missing


def test_a_quantile_is_a_value_that_was_seen() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 2.0, 3.0, 3.0]
