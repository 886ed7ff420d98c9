"""The demo's sum of groups: each that was launched is in it once, by its end."""

from __future__ import annotations

from ops.demo.view import groups_by_end
from tests.unit.trainer_client.run_records import a_step_record
from trainer_client.records import StepRecord


def a_step(*, dropped: int = 0, dead: int = 0) -> StepRecord:
    return a_step_record(groups=("a",) * 8, target=8, n=8, filtered=8, dropped=dropped, dead=dead, redundant=5)


def test_groups_that_closed_when_the_step_was_complete_are_counted() -> None:
    """Four of 25 were in no figure: three informative ones that no step took, and one that was filtered after the step."""
    counted = {"launched": 25, "informative": 8, "filtered": 9, "cancelled": 5, "given_up": 5}

    assert groups_by_end(a_step(), counted, parked=3) == (
        "25 launched: 8 informative (target 8) · 8 filtered · 0 dropped · 5 cancelled as redundant",
        "3 informative, parked for a next step · 1 filtered, after the step was complete",
    )


def test_a_step_that_took_everything_says_no_more() -> None:
    counted = {"launched": 24, "informative": 8, "filtered": 8, "cancelled": 5, "dead": 2, "dropped": 1}

    said = groups_by_end(a_step(dead=2, dropped=1), counted, parked=0)

    assert said == ("24 launched: 8 informative (target 8) · 8 filtered · 1 dropped · 5 cancelled as redundant · 2 dead", "")


def test_groups_that_are_still_open_are_told() -> None:
    counted = {"launched": 22, "informative": 8, "filtered": 8, "cancelled": 5}

    assert groups_by_end(a_step(), counted, parked=0)[1] == "1 not closed yet, after the step was complete"
