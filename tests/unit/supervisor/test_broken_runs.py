"""A run in which infrastructure breaks every group: one is tried now and then, whatever its steps want."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.messages import Outcome
from pipeline.supervisor import ledger
from pipeline.supervisor.actions import Launch
from pipeline.supervisor.shortage import Shortage, shortage
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, Member, OpenStep, RunView

SPEC = StepSpec(target=16, n=2)
STEP = OpenStep(index=3, spec=SPEC, accepted=0)


def a_view(**changes: object) -> RunView:
    given: dict[str, object] = {"basis": Basis("r", 1, 7), "steps": (STEP,), "reserve": 100, "broken": ledger.BROKEN_IN_A_ROW}
    return RunView(**{**given, "broken_ms": 1000, **changes})  # type: ignore[arg-type]


def a_closed(*outcomes: Outcome) -> ClosedGroup:
    members = {
        index: Member(outcome=outcome, reward=None if outcome is Outcome.INFRA_FAILURE else 0.0, components={})
        for index, outcome in enumerate(outcomes)
    }
    return ClosedGroup(id="r.e0-1.0", incarnation=1, want=len(outcomes), members=members, closed_ms=5, spec=SPEC, prompt="e0-1")


def test_a_step_is_served_in_full_until_so_many_are_broken() -> None:
    found = ledger.launch(a_view(broken=ledger.BROKEN_IN_A_ROW - 1))
    assert found is not None
    assert found.groups >= SPEC.target


@pytest.mark.parametrize(
    ("flying", "since_ms", "expected"),
    [
        (0, ledger.PROBE_EVERY_MS - 1, None),
        (0, ledger.PROBE_EVERY_MS, Launch(step=3, groups=1, bound=1)),
        (1, ledger.PROBE_EVERY_MS, None),
    ],
)
def test_then_one_group_is_tried_at_a_time_so_long_after_the_last(flying: int, since_ms: int, expected: Launch | None) -> None:
    view = a_view(flying=flying, now_ms=1000 + since_ms)
    assert ledger.launch(view) == expected
    assert shortage(view, refused=False, stage_is_idle=False) is Shortage.BROKEN


@pytest.mark.parametrize(
    ("outcomes", "is_broken"),
    [
        ((Outcome.INFRA_FAILURE, Outcome.INFRA_FAILURE), True),
        ((Outcome.INFRA_FAILURE, Outcome.OK), False),
        ((Outcome.INFRA_FAILURE, Outcome.EXPIRED), False),
        ((Outcome.EXPIRED, Outcome.EXPIRED), False),
    ],
)
def test_a_group_is_broken_when_infrastructure_broke_each_of_its_members(outcomes: tuple[Outcome, ...], is_broken: bool) -> None:
    (account,) = ledger.account(a_view(), [a_closed(*outcomes)])
    assert account.broken is is_broken


def test_broken_groups_of_a_deterministic_step_are_in_no_row_while_others_came_through() -> None:
    """They go at once and the others wait for their turn: ten in a row were counted of which a quarter was broken, and nothing launched."""
    spec = replace(SPEC, deterministic=True)
    broken = replace(a_closed(Outcome.INFRA_FAILURE, Outcome.INFRA_FAILURE), spec=spec, place=1, launched_for=3)
    through = replace(a_closed(Outcome.OK, Outcome.OK), id="r.e0-2.0", prompt="e0-2", spec=spec, place=2, launched_for=3)
    view = a_view(steps=(replace(STEP, spec=spec),), flying=2, flying_places={"r.e0-1.0": 1, "r.e0-2.0": 2}, reserve_place=3)

    assert [account.broken for account in ledger.account(view, [broken]) if account.group == broken.id] == [True]
    assert [account.broken for account in ledger.account(view, [broken, through]) if account.group == broken.id] == [False]
