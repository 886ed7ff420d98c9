"""The rules of the ledger one by one; their interplay is tested in `tests/model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.messages import Outcome
from pipeline.supervisor import ledger
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, FlyingGroup, Member, OpenStep, RunView

SPEC = StepSpec(target=2, n=2, over=1.0)


def a_view(*steps: OpenStep, **changes: object) -> RunView:
    view = RunView(basis=Basis("run1", 1, 7), steps=steps, reserve=100, informative=500, judged=501)
    return replace(view, **changes)  # type: ignore[arg-type]  # the view's own fields


def a_step(index: int = 0, accepted: int = 0, spec: StepSpec = SPEC) -> OpenStep:
    return OpenStep(index=index, spec=spec, accepted=accepted)


def a_closed(name: str, rewards: Sequence[float] = (0.0, 1.0), *, closed_ms: int = 0, parked: bool = False) -> ClosedGroup:
    members = {
        i: Member(outcome=Outcome.OK, reward=reward, components={}, sampled_tokens=10, total_tokens=30, first_version=f"1.{i + 9}")
        for i, reward in enumerate(rewards)
    }
    return ClosedGroup(id=name, incarnation=1, want=len(rewards), members=members, closed_ms=closed_ms, spec=SPEC, parked=parked)


def a_flying(name: str, *, finished: int = 0, ended: int = 0, begun: int = 0, launched_ms: int = 0) -> FlyingGroup:
    return FlyingGroup(id=name, incarnation=1, want=8, launched_ms=launched_ms, ended=max(ended, finished), finished=finished, begun=begun)


def test_two_groups_that_close_in_one_drain_take_one_place_between_them() -> None:
    accounts = ledger.account(a_view(a_step(accepted=1)), [a_closed("b"), a_closed("a")])

    assert [(account.group, account.step) for account in accounts] == [("a", 0), ("b", None)]
    assert all(account.verdict is Verdict.INFORMATIVE for account in accounts)


def test_a_surplus_group_goes_into_the_next_step_that_is_open() -> None:
    accounts = ledger.account(a_view(a_step(0, accepted=1), a_step(1)), [a_closed("a"), a_closed("b")])

    assert [account.step for account in accounts] == [0, 1]


def test_a_group_that_waited_goes_before_one_that_just_closed() -> None:
    view = a_view(a_step(accepted=1), parked=(a_closed("waited", closed_ms=9, parked=True),))

    accounts = ledger.account(view, [a_closed("new", closed_ms=3)])

    assert [(account.group, account.step) for account in accounts] == [("waited", 0), ("new", None)]


def test_a_parked_group_that_no_step_has_room_for_stays_where_it_is() -> None:
    assert ledger.account(a_view(a_step(accepted=2), parked=(a_closed("a", parked=True),)), []) == []
    assert ledger.account(a_view(parked=(a_closed("a", parked=True),)), []) == []


def test_a_group_of_another_size_than_any_open_step_is_surplus() -> None:
    [account] = ledger.account(a_view(a_step()), [a_closed("a", (0.0, 1.0, 1.0))])

    assert (account.verdict, account.step) == (Verdict.SURPLUS, 0)


def test_a_filtered_group_is_counted_to_the_oldest_open_step() -> None:
    [account] = ledger.account(a_view(a_step(4), a_step(5)), [a_closed("a", (1.0, 1.0))])

    assert (account.verdict, account.step, account.tokens) == (Verdict.FILTERED, 4, {"filtered": 20})


def test_a_group_the_ledger_did_not_launch_gets_its_verdict_and_joins_nothing() -> None:
    [account] = ledger.account(a_view(a_step()), [replace(a_closed("a"), launched_by_ledger=False)])

    assert (account.verdict, account.step) == (Verdict.INFORMATIVE, None)


def test_tokens_are_told_apart_by_what_became_of_their_member() -> None:
    group = a_closed("a", (0.0, 1.0, 1.0, 1.0))
    members = {
        **group.members,
        2: replace(group.members[2], outcome=Outcome.INFRA_FAILURE, reward=None, sampled_tokens=5),
        3: replace(group.members[3], outcome=Outcome.CANCELLED, reward=None, sampled_tokens=3),
    }
    [account] = ledger.account(a_view(a_step()), [replace(group, members=members, spec=replace(SPEC, n=4, min_members=2))])

    assert (account.sampled, account.tokens) == (28, {"surplus": 20, "failed": 5, "cancelled": 3})
    assert account.first_version == "1.9"


def test_a_run_that_was_cancelled_trains_on_nothing_more() -> None:
    [account] = ledger.account(a_view(a_step(), cancelled_for="user"), [a_closed("a")])

    assert account.verdict is Verdict.CANCELLED
    assert ledger.launch(a_view(a_step(), cancelled_for="user")) is None


def test_a_step_ends_at_its_target_or_when_nothing_more_can_come() -> None:
    assert ledger.reached(a_view(a_step(accepted=1))) is None
    full = ledger.reached(a_view(a_step(0, accepted=1), a_step(1, accepted=2)))
    assert full is not None
    assert full.index == 1
    ended = a_view(a_step(3, accepted=1), a_step(4), prompts_ended=True, reserve=0)
    short = ledger.reached(ended)
    assert short is not None
    assert ledger.reach(ended, short, []).short
    for more in ({"flying": 1}, {"reserve": 1}, {"prompts_ended": False}, {"parked": (a_closed("a", parked=True),)}):
        assert ledger.reached(replace(ended, **more)) is None


def test_at_the_target_groups_without_a_finished_member_are_redundant_least_work_first() -> None:
    flying = [
        a_flying("finished", finished=1, begun=8),
        a_flying("broken_one", ended=1, begun=8, launched_ms=1),
        a_flying("running", begun=5, launched_ms=2),
        a_flying("waiting_old", launched_ms=3),
        a_flying("waiting_new", launched_ms=4),
    ]

    action = ledger.reach(a_view(a_step(accepted=2), flying=5), a_step(accepted=2), flying)

    assert action.redundant == ("waiting_new", "waiting_old", "running", "broken_one")
    assert action.spare


def test_with_a_step_ahead_only_what_it_does_not_need_and_nobody_began_is_redundant() -> None:
    view = a_view(a_step(accepted=2), a_step(1), flying=5)
    flying = [a_flying("a", begun=1), a_flying("b", begun=1), *(a_flying(f"w{i}", launched_ms=i) for i in range(3))]

    assert ledger.reach(view, a_step(accepted=2), flying).redundant == ("w2", "w1")  # 2 / (500 / 501) and no more: 3 are kept
    begun = [a_flying(f"b{i}", begun=1) for i in range(9)]
    assert ledger.reach(view, a_step(accepted=2), begun).redundant == ()


def test_named_rules_cancel_nothing_or_everything() -> None:
    flying = [a_flying("finished", finished=1), a_flying("running", begun=3)]
    carry, everything = (replace(SPEC, cancel=rule) for rule in (CancelRule.CARRY, CancelRule.ALL))

    assert ledger.reach(a_view(a_step(accepted=2, spec=carry)), a_step(accepted=2, spec=carry), flying).redundant == ()
    assert ledger.reach(a_view(a_step(accepted=2, spec=everything)), a_step(accepted=2, spec=everything), flying).redundant == (
        "finished",
        "running",
    )


def test_what_is_missing_is_launched_for_the_oldest_step_that_is_not_covered() -> None:
    spec = replace(SPEC, target=4)
    view = a_view(a_step(0, 3, spec), a_step(1, 0, spec), flying=1)

    first = ledger.launch(view)
    assert first is not None
    assert (first.step, first.groups, first.bound) == (0, 1, 2)
    second = ledger.launch(replace(view, flying=2))
    assert second is not None
    assert (second.step, second.groups, second.bound) == (1, 4, 6)
    assert ledger.launch(replace(view, flying=6)) is None


def test_an_empty_reserve_is_announced_once_and_not_at_all_when_the_prompts_ended() -> None:
    empty = a_view(a_step(), reserve=0)

    assert ledger.launch(empty) is not None
    assert ledger.launch(replace(empty, need_announced=True)) is None
    assert ledger.launch(replace(empty, prompts_ended=True)) is None


def test_policy_versions_are_compared_as_numbers() -> None:
    assert ledger.oldest_version(["1.10", "1.9", "", "2.1"]) == "1.9"
    assert ledger.newest_version(["1.10", "1.9", ""]) == "1.10"
    assert ledger.oldest_version(["", ""]) == ""
