"""How old a group is, and what a step that drops stale groups makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.messages import Outcome
from pipeline.supervisor import ledger
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.staleness import Version, age, is_too_old, oldest_of, parse_version
from pipeline.supervisor.step_spec import OnStale, StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, Member, OpenStep, RunView

DROP = StepSpec(target=2, n=2, on_stale=OnStale.DROP, max_staleness=1)


def a_closed(*versions: str, parked: bool = False, broken: str | None = None) -> ClosedGroup:
    """Informative, sampled by these versions; a member of version `broken` had its infrastructure fail."""
    members = {
        index: Member(
            outcome=Outcome.INFRA_FAILURE if version == broken else Outcome.OK,
            reward=float(index % 2),
            components={},
            first_version=version,
        )
        for index, version in enumerate(versions)
    }
    return ClosedGroup(id="run1.p.0", incarnation=1, want=2, members=members, closed_ms=0, spec=replace(DROP, n=2), parked=parked)


def a_view(version: int | None, *accepted: int, spec: StepSpec = DROP, untrained: tuple[int, ...] = (), first: int = 1) -> RunView:
    steps = tuple(OpenStep(index=first + at, spec=spec, accepted=count) for at, count in enumerate(accepted))
    return RunView(
        basis=Basis("run1", 1, 7), steps=steps, version=None if version is None else Version(1, version), untrained=untrained, reserve=9
    )


def verdict(view: RunView, group: ClosedGroup) -> Verdict:
    [account] = ledger.account(view, [group])
    return account.verdict


@pytest.mark.parametrize(
    ("label", "version"),
    [("1.7", Version(1, 7)), ("12.0", Version(12, 0)), ("", None), ("7", None), ("default", None), ("1.7.2", None), ("1.-2", None)],
)
def test_only_labels_of_ours_are_versions(label: str, version: Version | None) -> None:
    assert parse_version(label) == version
    assert version is None or str(version) == label


def test_the_oldest_version_counts_and_numbers_compare_as_numbers() -> None:
    assert oldest_of(["1.10", "1.9", "unknown", ""]) == Version(1, 9)
    assert oldest_of(["2.1", "1.50"]) == Version(1, 50)
    assert oldest_of(["unknown"]) is None


def test_versions_of_two_histories_have_no_age_and_the_earlier_one_is_too_old() -> None:
    assert age(Version(1, 5), Version(2, 5)) is None
    assert is_too_old(Version(1, 5), Version(2, 5), 100)
    assert not is_too_old(Version(2, 5), Version(1, 5), 0)


def test_what_is_unknown_is_never_too_old() -> None:
    assert not is_too_old(None, Version(1, 5), 0)
    assert not is_too_old(Version(1, 5), None, 0)
    assert verdict(a_view(None, 0), a_closed("1.0", "1.0")) is Verdict.INFORMATIVE
    assert verdict(a_view(9, 0), a_closed("", "weights-of-somebody")) is Verdict.INFORMATIVE


@pytest.mark.parametrize(("sampled_by", "expected"), [("1.4", Verdict.INFORMATIVE), ("1.3", Verdict.STALE)])
def test_a_group_is_as_old_as_its_oldest_member_never_as_its_newest(sampled_by: str, expected: Verdict) -> None:
    assert verdict(a_view(5, 0), a_closed("1.5", sampled_by)) is expected


def test_a_member_outside_the_statistics_makes_no_group_old() -> None:
    spec = replace(DROP, min_members=1)
    group = replace(a_closed("1.5", "1.2", broken="1.2"), spec=replace(spec, policy="every"))

    assert verdict(a_view(5, 0, spec=spec), group) is Verdict.INFORMATIVE


def test_each_step_before_brings_one_update() -> None:
    """The first of two open steps is full: a group for the second is trained after the first one's update."""
    assert verdict(a_view(5, 2, 0), a_closed("1.5", "1.5")) is Verdict.INFORMATIVE
    assert verdict(a_view(5, 2, 0), a_closed("1.4", "1.5")) is Verdict.STALE


def test_a_step_that_was_reached_and_is_in_training_brings_one_too() -> None:
    assert verdict(a_view(5, 0, first=4, untrained=(3,)), a_closed("1.4", "1.5")) is Verdict.STALE
    assert verdict(a_view(5, 0, first=4, untrained=(5,)), a_closed("1.4", "1.5")) is Verdict.INFORMATIVE


def test_the_step_that_would_train_it_says_what_is_too_old_not_the_one_it_was_launched_for() -> None:
    lenient = replace(DROP, max_staleness=4)

    assert verdict(a_view(5, 0, spec=lenient), a_closed("1.1", "1.5")) is Verdict.INFORMATIVE


def test_with_mark_nothing_is_dropped_for_its_age() -> None:
    assert verdict(a_view(50, 0, spec=replace(DROP, on_stale=OnStale.MARK)), a_closed("1.1", "1.5")) is Verdict.INFORMATIVE


def test_a_parked_group_is_judged_when_a_step_opens_and_takes_no_place_when_it_is_too_old() -> None:
    parked = a_closed("1.1", "1.1", parked=True)
    waiting = replace(a_view(3), parked=(parked,))

    assert ledger.account(waiting, []) == []
    stale, joined = ledger.account(replace(a_view(3, 1), parked=(parked,)), [replace(a_closed("1.3", "1.3"), id="run1.q.0")])
    assert (stale.verdict, stale.step) == (Verdict.STALE, 1)
    assert stale.why == "sampled by 1.1, step 1 is trained with 1.3, at most 1 apart"
    assert (joined.verdict, joined.step) == (Verdict.INFORMATIVE, 1)


def test_uninformative_groups_are_filtered_however_old() -> None:
    old = a_closed("1.0", "1.0")
    same = replace(old, members={index: replace(member, reward=1.0) for index, member in old.members.items()})

    assert verdict(a_view(9, 0), same) is Verdict.FILTERED
