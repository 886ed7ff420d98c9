"""Verdicts on closed groups: who counts, and what the values say (promise 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint

import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import Outcome, StopReason
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.informative import BUILT_IN, Policy, check_policy
from pipeline.supervisor.installed_policies import load_policies
from pipeline.supervisor.loss_policy import Loss
from pipeline.supervisor.policies import Judgement, judge, value_of
from pipeline.supervisor.staleness import Version
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import ClosedGroup, Member

OK, MODEL, INFRA = Outcome.OK, Outcome.MODEL_FAILURE, Outcome.INFRA_FAILURE


def a_member(
    reward: float | None = 1.0, outcome: Outcome = OK, reason: str = "", components: dict[str, float | None] | None = None
) -> Member:
    return Member(outcome=outcome, reward=reward, components=components or {}, reason=reason)


def verdict_on(members: Sequence[Member], spec: StepSpec | None = None, *, redraws: int = 0, given_up: str = "") -> Judgement:
    found = judgement_on(members, spec, redraws=redraws, given_up=given_up)
    assert found is not None
    return found


def judgement_on(
    members: Sequence[Member],
    spec: StepSpec | None = None,
    *,
    redraws: int = 0,
    given_up: str = "",
    policies: Mapping[str, Policy] = BUILT_IN,
) -> Judgement | None:
    group = ClosedGroup(
        id="run1.p.0",
        incarnation=1,
        want=len(members),
        members=dict(enumerate(members)),
        closed_ms=0,
        spec=spec or StepSpec(target=1, n=len(members)),
        redraws=redraws,
        given_up=given_up,
    )
    return judge(group, incarnation=1, policies=policies)


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [
        ([1, 1, 1, 1], Verdict.FILTERED),
        ([0, 0, 0, 0], Verdict.FILTERED),
        ([1, 0, 0, 0], Verdict.INFORMATIVE),
        ([0.5, 0.5, 0.5, 0.5], Verdict.FILTERED),
        ([0.4, 0.5, 0.5, 0.6], Verdict.INFORMATIVE),
        ([0.1 + 0.2, 0.3, 0.3, 0.3], Verdict.FILTERED),
    ],
)
def test_a_group_is_informative_when_its_rewards_differ(rewards: list[float], verdict: Verdict) -> None:
    assert verdict_on([a_member(reward) for reward in rewards]).verdict is verdict


def test_statistics_are_of_valid_members_only() -> None:
    found = verdict_on([a_member(1.0), a_member(0.0), a_member(None, INFRA), a_member(0.0)])

    assert found.verdict is Verdict.INFORMATIVE
    assert found.values == (1.0, 0.0, None, 0.0)
    assert found.mean == pytest.approx(1 / 3)
    assert found.spread == 1.0


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, 1.5, -0.5])
def test_a_reward_that_is_none_is_outside_the_statistics_and_never_a_nought(reward: float | None) -> None:
    spec = StepSpec(target=1, n=4, reward_low=0.0, reward_high=1.0)

    found = verdict_on([a_member(reward), *[a_member(1.0)] * 3], spec)

    assert found.values[0] is None
    assert found.verdict is Verdict.FILTERED  # with a made-up nought it would look informative


@pytest.mark.parametrize("outcome", [INFRA, Outcome.CANCELLED, Outcome.EXPIRED])
def test_what_broke_was_cancelled_or_expired_is_outside_whatever_its_reward_says(outcome: Outcome) -> None:
    assert verdict_on([a_member(0.0, outcome), *[a_member(1.0)] * 3]).verdict is Verdict.FILTERED


@pytest.mark.parametrize("reward", [0.0, None])
def test_a_failure_the_model_caused_counts_with_its_nought(reward: float | None) -> None:
    found = verdict_on([a_member(reward, MODEL), *[a_member(1.0)] * 3])

    assert found.values[0] == 0.0
    assert found.verdict is Verdict.INFORMATIVE


def test_a_failure_the_model_caused_counts_as_nought_in_a_component_it_has_not() -> None:
    spec = StepSpec(target=1, n=2, component="tests")

    assert value_of(a_member(None, MODEL), spec) == 0.0
    assert value_of(a_member(1.0, OK), spec) is None


def test_the_filter_looks_at_the_named_component() -> None:
    spec = StepSpec(target=1, n=2, component="tests")
    members = [a_member(1.0, components={"tests": 0.5}), a_member(0.0, components={"tests": 0.5})]

    assert verdict_on(members, spec).verdict is Verdict.FILTERED


def test_a_component_the_grader_could_not_say_is_missing() -> None:
    spec = StepSpec(target=1, n=2, component="tests")

    assert value_of(a_member(1.0, components={"tests": None}), spec) is None
    assert value_of(a_member(math.nan, components={"tests": 1.0}), spec) is None


@pytest.mark.parametrize(("valid", "verdict"), [(6, Verdict.INFORMATIVE), (5, Verdict.DROPPED)])
def test_a_group_closes_short_with_three_quarters_of_its_members(valid: int, verdict: Verdict) -> None:
    members = [a_member(float(i % 2)) for i in range(valid)] + [a_member(None, INFRA)] * (8 - valid)

    assert verdict_on(members).verdict is verdict


def test_the_fewest_members_can_be_set() -> None:
    spec = StepSpec(target=1, n=4, min_members=2)

    assert verdict_on([a_member(1.0), a_member(0.0), a_member(None, INFRA), a_member(None, INFRA)], spec).verdict is Verdict.INFORMATIVE
    lonely = verdict_on([a_member(1.0), *[a_member(None, INFRA)] * 3], spec)
    assert lonely.verdict is Verdict.DROPPED
    assert lonely.why == "1 of 4 valid, 2 needed: infra_failure 3"


def test_a_prompt_that_was_dropped_too_often_is_dead() -> None:
    spec = StepSpec(target=1, n=4, max_redraws=2)
    members = [a_member(None, INFRA)] * 4

    assert verdict_on(members, spec, redraws=1).verdict is Verdict.DROPPED
    assert verdict_on(members, spec, redraws=2).verdict is Verdict.DEAD


def test_a_group_that_was_given_up_is_cancelled_even_when_all_its_members_ended_well() -> None:
    found = verdict_on([a_member(1.0), a_member(0.0)], given_up="redundant")

    assert (found.verdict, found.why) == (Verdict.CANCELLED, "redundant")


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [("redundant", Verdict.CANCELLED), ("stale", Verdict.STALE), ("user", Verdict.DROPPED), ("deadline", Verdict.DROPPED)],
)
def test_members_cancelled_one_by_one_count_as_a_draw_only_when_somebody_meant_that_prompt(reason: str, verdict: Verdict) -> None:
    assert verdict_on([a_member(None, Outcome.CANCELLED, reason)] * 4).verdict is verdict


def test_a_group_of_an_older_incarnation_is_never_trained_on() -> None:
    group = ClosedGroup(
        id="run1.p.0", incarnation=1, want=2, members={0: a_member(1.0), 1: a_member(0.0)}, closed_ms=0, spec=StepSpec(target=1, n=2)
    )

    found = judge(group, incarnation=2)
    assert found is not None
    assert found.verdict is Verdict.CANCELLED


def test_a_policy_that_this_process_does_not_know_gives_no_verdict_where_one_is_needed() -> None:
    spec = StepSpec(target=1, n=2, policy="somebody_elses")

    assert judgement_on([a_member(1.0), a_member(0.0)], spec) is None
    assert verdict_on([a_member(None, INFRA)] * 2, spec).verdict is Verdict.DROPPED


def test_a_policy_that_raises_drops_the_group_and_says_why() -> None:
    def broken(values: Sequence[float], spec: StepSpec) -> bool:
        raise ZeroDivisionError(f"of {len(values)} values")

    spec = StepSpec(target=1, n=2, policy="broken", max_redraws=1)
    members = [a_member(1.0), a_member(0.0)]
    first, last = (judgement_on(members, spec, redraws=redraws, policies={"broken": broken}) for redraws in (0, 1))

    assert first is not None
    assert last is not None
    assert (first.verdict, last.verdict) == (Verdict.DROPPED, Verdict.DEAD)
    assert first.why == "policy broken raised ZeroDivisionError: of 2 values"


@pytest.mark.parametrize(
    ("passed", "args", "verdict"),
    [
        (0, {}, Verdict.FILTERED),
        (4, {}, Verdict.FILTERED),
        (1, {}, Verdict.INFORMATIVE),
        (3, {"low": 0.25, "high": 0.75}, Verdict.INFORMATIVE),
        (3, {"low": 0.25, "high": 0.7}, Verdict.FILTERED),
        (0, {"low": 0.0}, Verdict.INFORMATIVE),
        (2, {"pass_at": 1.5}, Verdict.FILTERED),
    ],
)
def test_a_pass_rate_is_the_share_of_members_that_reach_the_threshold(passed: int, args: dict[str, float], verdict: Verdict) -> None:
    spec = StepSpec(target=1, n=4, policy="pass_rate_between", policy_args=args)

    assert verdict_on([a_member(float(index < passed)) for index in range(4)], spec).verdict is verdict


def test_with_no_filter_equal_rewards_are_trained_on_too() -> None:
    assert verdict_on([a_member(1.0)] * 4, StepSpec(target=1, n=4, policy="every")).verdict is Verdict.INFORMATIVE


@pytest.mark.parametrize("args", [{"low": 0.8, "high": 0.2}, {"low": -0.1}, {"high": 1.1}, {"lo": 0.1}])
def test_arguments_that_a_built_in_policy_cannot_take_are_refused(args: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_policy("pass_rate_between", args)

    assert refused.value.field == "policy_args"
    check_policy("somebody_elses", args)


def test_an_excluded_stop_reason_is_outside_the_statistics_and_a_masked_one_is_not() -> None:
    spec = StepSpec(target=1, n=4, loss={StopReason.TURNS: Loss.EXCLUDE, StopReason.TOKENS: Loss.MASK})
    stops = ("finished", "turns", "tokens", "finished")
    members = [Member(outcome=OK, reward=float(index % 2), components={}, stop=stop) for index, stop in enumerate(stops)]

    assert verdict_on(members, spec).values == (0.0, None, 0.0, 1.0)
    assert verdict_on([members[1]] * 4, spec).why == "0 of 4 valid, 3 needed: excluded (turns) 4"


def test_a_judgement_knows_the_oldest_version_of_valid_members_only() -> None:
    members = [
        Member(outcome=outcome, reward=float(index % 2), components={}, first_version=version)
        for index, (outcome, version) in enumerate([(OK, "1.10"), (INFRA, "1.2"), (MODEL, "1.9"), (OK, "")])
    ]

    assert verdict_on(members, StepSpec(target=1, n=4)).oldest == Version(1, 9)


def test_own_policies_come_from_entry_points_and_a_broken_one_keeps_nobody_from_working() -> None:
    points = [
        EntryPoint("at_least_one", "builtins:any", "rollstream.policies"),
        EntryPoint("gone", "no_such_module:policy", "rollstream.policies"),
        EntryPoint("spread", "builtins:all", "rollstream.policies"),
        EntryPoint("no_function", "math:pi", "rollstream.policies"),
    ]

    policies = load_policies(points)

    assert set(policies) == {*BUILT_IN, "at_least_one"}
    assert policies["spread"] is BUILT_IN["spread"]
