"""Deterministic steps: what is accounted depends on the order of the prompts, not on what closed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from pipeline.messages import Outcome
from pipeline.step_request import StepRequest
from pipeline.supervisor import ledger
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.launch_order import STEP_IS_OVER
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, Member, OpenStep, RunView

SPEC = StepRequest(task="math", groups=2, n=2, over=1.0, deterministic=True).spec()
BROKEN: tuple[float | None, ...] = (None, None)


def a_view(accepted: int = 0, *, flying: Mapping[str, int], reserve_place: int | None = 100, **changes: object) -> RunView:
    """Step 3 is open; `flying` are places by group."""
    view = RunView(
        basis=Basis("run1", 1, 7),
        steps=(OpenStep(index=3, spec=SPEC, accepted=accepted),),
        flying=len(flying),
        flying_places=flying,
        reserve=1 if reserve_place is not None else 0,
        reserve_place=reserve_place,
        informative=500,
        judged=500,
    )
    return replace(view, **changes)  # type: ignore[arg-type]  # the view's own fields


def a_closed(place: int, rewards: Sequence[float | None] = (0.0, 1.0), *, launched_for: int = 3, **changes: object) -> ClosedGroup:
    """Group `g<place>`; the higher its place, the earlier it closed."""
    members = {
        number: Member(outcome=Outcome.INFRA_FAILURE if reward is None else Outcome.OK, reward=reward, components={})
        for number, reward in enumerate(rewards)
    }
    group = ClosedGroup(
        id=f"g{place}",
        incarnation=1,
        want=len(rewards),
        members=members,
        closed_ms=10_000 - place,
        spec=SPEC,
        launched_for=launched_for,
        place=place,
    )
    return replace(group, **changes)  # type: ignore[arg-type]  # the group's own fields


def verdicts(view: RunView, *closed: ClosedGroup) -> list[tuple[str, Verdict, int | None]]:
    return [(account.group, account.verdict, account.step) for account in ledger.account(view, closed)]


def test_a_later_prompt_that_closes_first_waits() -> None:
    view = a_view(flying={"g1": 1, "g2": 2, "g3": 3})

    assert verdicts(view, a_closed(3), a_closed(2, (1.0, 1.0))) == []


def test_what_waited_is_accounted_in_the_order_of_places_when_the_first_has_closed() -> None:
    view = a_view(flying={"g1": 1, "g2": 2, "g3": 3})

    assert verdicts(view, a_closed(3), a_closed(1), a_closed(2, (1.0, 1.0))) == [
        ("g1", Verdict.INFORMATIVE, 3),
        ("g2", Verdict.FILTERED, 3),
        ("g3", Verdict.INFORMATIVE, 3),
    ]


def test_nothing_is_accounted_beyond_the_target_filtered_groups_neither() -> None:
    """The next version may judge them otherwise, and whether they closed in time depends on the clock."""
    view = a_view(accepted=1, flying={"g1": 1, "g2": 2, "g3": 3})

    assert verdicts(view, a_closed(1), a_closed(2, (1.0, 1.0)), a_closed(3)) == [("g1", Verdict.INFORMATIVE, 3)]


def test_a_prompt_that_is_still_in_the_reserve_is_waited_for() -> None:
    view = a_view(flying={"g5": 5, "g6": 6}, reserve_place=4)

    assert verdicts(view, a_closed(5), a_closed(6)) == []


def test_a_dropped_group_goes_back_at_once_and_those_behind_it_wait_for_its_next_draw() -> None:
    view = a_view(flying={"g1": 1, "g2": 2, "g3": 3})

    assert verdicts(view, a_closed(2, BROKEN), a_closed(3)) == [("g2", Verdict.DROPPED, 3)]
    assert verdicts(view, a_closed(1), a_closed(2, BROKEN), a_closed(3)) == [("g1", Verdict.INFORMATIVE, 3), ("g2", Verdict.DROPPED, 3)]


def test_a_prompt_that_is_dead_keeps_its_turn() -> None:
    view = a_view(flying={"g1": 1, "g2": 2})
    dead = a_closed(2, BROKEN, redraws=SPEC.max_redraws)

    assert verdicts(view, dead) == []
    assert verdicts(view, dead, a_closed(1)) == [("g1", Verdict.INFORMATIVE, 3), ("g2", Verdict.DEAD, 3)]


def test_a_group_that_was_launched_for_a_step_that_is_over_is_given_up_whatever_it_came_to() -> None:
    late = a_closed(1, launched_for=2)
    view = a_view(flying={"g1": 1, "g4": 4})

    [account, *rest] = ledger.account(view, [late, a_closed(4)])

    assert (account.verdict, account.why) == (Verdict.CANCELLED, STEP_IS_OVER)
    assert rest == []  # its prompt returns, before g4
    [account] = ledger.account(replace(view, steps=()), [late])
    assert (account.verdict, account.step) == (Verdict.CANCELLED, None)


def test_a_group_that_was_given_up_holds_nobody_up() -> None:
    """Its prompt went back when it was given up, and is in flight again as g7's."""
    view = a_view(flying={"g7": 7, "g8": 8})

    found = verdicts(view, a_closed(2, given_up="redundant", launched_for=2), a_closed(7))

    assert found == [("g2", Verdict.CANCELLED, 3), ("g7", Verdict.INFORMATIVE, 3)]


def test_a_prompt_that_returned_before_all_in_flight_is_launched_over_the_bound() -> None:
    """Else those in flight, which closed and wait for it, would hold its place for ever."""
    full = a_view(flying={"g5": 5, "g6": 6, "g7": 7}, reserve_place=4)

    action = ledger.launch(full)

    assert action is not None
    assert (action.groups, action.bound) == (1, 4)
    assert ledger.launch(a_view(flying={"g3": 3, "g6": 6, "g7": 7}, reserve_place=4)) is None


@given(st.data())
def test_what_is_trained_does_not_depend_on_the_order_of_closing(data: st.DataObject) -> None:
    """Groups of all kinds close in any order and portions; those that trained are the first informative ones by place."""
    kinds = data.draw(st.lists(st.sampled_from([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]), min_size=2, max_size=9))
    order = data.draw(st.permutations(range(len(kinds))))
    flying = {f"g{place}": place for place in range(len(kinds))}
    waiting: list[ClosedGroup] = []
    trained: list[str] = []
    for place in order:
        waiting.append(a_closed(place, kinds[place]))
        view = a_view(len(trained), flying=flying)
        if view.steps[0].wanting:
            for account in ledger.account(view, data.draw(st.permutations(waiting))):
                flying.pop(account.group)
                waiting = [group for group in waiting if group.id != account.group]
                trained += [account.group] if account.verdict is Verdict.INFORMATIVE else []

    informative = [f"g{place}" for place, kind in enumerate(kinds) if kind == (0.0, 1.0)]
    assert trained == informative[: SPEC.target]


def test_a_deterministic_step_has_the_options_that_make_it_so() -> None:
    request = StepRequest(task="math", groups=2, n=4, deterministic=True)

    assert request.ahead == 0
    assert request.template().deterministic
    assert (request.spec().cancel, request.spec().fewest, request.spec().deterministic) == (CancelRule.ALL, 4, True)
    assert StepSpec.from_fields(request.spec().fields()) == request.spec()


@pytest.mark.parametrize(
    ("field", "value"),
    [("ahead", 1), ("cancel", "carry"), ("cancel", "default"), ("min_members", 3)],
)
def test_an_option_that_contradicts_it_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"expected {field} to be left out"):
        StepRequest.parse({"task": "math", "groups": 2, "n": 4, "deterministic": True, field: value})
