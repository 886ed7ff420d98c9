"""When a process is started again (docs/adr/0027-node.md, "Crashes")."""

from __future__ import annotations

from ops.node.restarts import Restart, RestartPolicy, decide_restart

POLICY = RestartPolicy()


def test_each_crash_in_a_row_waits_twice_as_long_up_to_a_bound() -> None:
    policy = RestartPolicy(crashes=100)
    found = [decide_restart(policy, crashes=before, ran_s=1.0, code=1) for before in range(9)]

    assert [each.pause_s for each in found if each is not None] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_past_the_cap_there_is_no_further_start() -> None:
    assert decide_restart(POLICY, crashes=4, ran_s=1.0, code=-9) == Restart(5, 8.0)
    assert decide_restart(POLICY, crashes=5, ran_s=1.0, code=-9) is None
    assert decide_restart(RestartPolicy(crashes=0), crashes=0, ran_s=1.0, code=-9) is None


def test_what_ran_for_a_while_begins_anew() -> None:
    assert decide_restart(POLICY, crashes=5, ran_s=60.0, code=1) == Restart(1, 0.5)


def test_wrong_settings_of_a_process_that_was_never_up_are_not_tried_again() -> None:
    assert decide_restart(POLICY, crashes=0, ran_s=2.0, code=2) is None
    assert decide_restart(POLICY, crashes=0, ran_s=600.0, code=2) is not None


def test_an_end_without_an_error_that_nobody_asked_for_is_a_crash() -> None:
    assert decide_restart(POLICY, crashes=0, ran_s=2.0, code=0) == Restart(1, 0.5)
