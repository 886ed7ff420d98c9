"""Events, exit code and log of a test run: where they differ the worse one counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.graders.swe.agreement import Results, agree, agree_on_log
from workers.graders.swe.channel import Heard, Session
from workers.graders.swe.logs import ParsedLog

ENDS = {"t.py::a": "PASSED", "t.py::b": "PASSED"}
FINISH = {"exit": 0, "shown": {"passed": 2, "failed": 0, "error": 0}, "verbose": 0}
SESSION = Session(framework="pytest", ends=ENDS, aliases={}, finish=FINISH)
SAYS_WELL = b"===== 2 passed in 0.01s =====\n"
SAYS_BAD = b"===== 1 failed, 1 passed in 0.01s =====\n"
HEARD = Heard(log=SAYS_WELL, log_was_cut=False, returncode=0, timed_out=False, took_s=1.0, sessions=(SESSION,))
LOG = ParsedLog(statuses=ENDS, summary={"PASSED": 2})


def agreed(heard: Heard = HEARD, log: ParsedLog | None = LOG, command: str = "pytest -rA") -> Results:
    return agree(heard, log, command=command)


def test_one_story_is_believed() -> None:
    assert agreed() == Results(ends=ENDS, aliases={})


@pytest.mark.parametrize("time", [b"0.01s", b"0.01 seconds", b"62.10s (0:01:02)"])
def test_the_last_line_is_known_from_every_version(time: bytes) -> None:
    assert agreed(replace(HEARD, log=b"===== 2 passed in " + time + b" =====\n")) == Results(ends=ENDS, aliases={})


@pytest.mark.parametrize(
    ("heard", "log"),
    [
        (replace(HEARD, returncode=1), LOG),
        (replace(HEARD, log=SAYS_BAD), LOG),
        (replace(HEARD, log=b""), LOG),
        (HEARD, replace(LOG, statuses={"t.py::a": "FAILED"})),
        (replace(HEARD, sessions=(replace(SESSION, finish={**FINISH, "shown": {"passed": 1, "failed": 1}}),)), LOG),
        (replace(HEARD, sessions=(replace(SESSION, finish=None),)), LOG),
        (replace(HEARD, sessions=(replace(SESSION, tampering=("a plugin joined",)),)), LOG),
        (replace(HEARD, has_report=False, sessions=()), LOG),
        (replace(HEARD, tampering=("a stranger connected",)), LOG),
    ],
)
def test_differing_stories_are_not(heard: Heard, log: ParsedLog) -> None:
    results = agreed(heard, log)

    assert results.trouble == "not_trusted"
    assert results.tampering


def test_a_test_that_the_log_names_failed_has_failed() -> None:
    results = agreed(log=replace(LOG, statuses={"t.py::a": "ERROR"}))

    assert results.ends == {"t.py::a": "ERROR", "t.py::b": "PASSED"}


def test_failures_that_all_tell_of_are_no_tampering() -> None:
    session = replace(SESSION, ends={**ENDS, "t.py::b": "FAILED"}, finish={"exit": 1, "shown": {"passed": 1, "failed": 1}, "verbose": 0})
    heard = replace(HEARD, sessions=(session,), returncode=1, log=SAYS_BAD)

    results = agreed(heard, ParsedLog(statuses=session.ends, summary={"PASSED": 1, "FAILED": 1}))

    assert (results.trouble, results.tampering) == ("", ())


def test_a_crash_is_no_success_and_no_tampering() -> None:
    results = agreed(replace(HEARD, sessions=(replace(SESSION, finish=None),), returncode=-11))

    assert (results.trouble, results.detail, results.tampering) == ("broke_off", "exit code -11", ())


def test_a_crash_is_told_by_the_limit_that_made_it() -> None:
    heard = replace(HEARD, sessions=(replace(SESSION, finish=None),), returncode=-9, notices=("memory: 9 GiB",))

    assert agreed(heard).detail == "memory: 9 GiB"


def test_running_out_of_time_is_called_so() -> None:
    assert agreed(replace(HEARD, timed_out=True, sessions=(replace(SESSION, finish=None),), returncode=-9)).trouble == "timed_out"


def test_a_cut_log_is_no_success() -> None:
    results = agreed(replace(HEARD, log_was_cut=True), None)

    assert (results.trouble, results.tampering) == ("log_too_long", ())


@pytest.mark.parametrize("command", ["pytest -rA || true", "pytest -rA | tee log", "pytest -rA; git status"])
def test_an_exit_code_that_may_be_another_programs_says_nothing(command: str) -> None:
    session = replace(SESSION, ends={"t.py::a": "FAILED"}, finish={"exit": 1, "shown": {"failed": 1}, "verbose": 0})

    heard = replace(HEARD, sessions=(session,), log=SAYS_BAD)
    results = agreed(heard, ParsedLog(statuses={"t.py::a": "FAILED"}), command)

    assert results.trouble == ""


def test_a_runner_told_to_be_quiet_has_no_last_line() -> None:
    session = replace(SESSION, finish={**FINISH, "verbose": -2})

    assert agreed(replace(HEARD, sessions=(session,), log=b"..\n")).trouble == ""


def test_doubts_of_the_log_are_told_of_runs_that_did_not_go_well() -> None:
    """Tests that run a runner themselves print a second summary, quite honestly."""
    doubtful = replace(LOG, doubts=("two last lines",))
    failed = replace(SESSION, ends={"t.py::a": "FAILED"}, finish={"exit": 1, "shown": {"failed": 1}, "verbose": 0})

    assert agreed(log=doubtful).tampering == ()
    results = agreed(replace(HEARD, sessions=(failed,), returncode=1, log=SAYS_BAD), doubtful)
    assert (results.trouble, results.tampering) == ("", ("two last lines",))


def test_what_tests_print_that_run_a_runner_themselves_is_not_its_last_line() -> None:
    assert agreed(replace(HEARD, log=SAYS_BAD + SAYS_WELL)).trouble == ""
    assert agreed(replace(HEARD, log=SAYS_WELL + SAYS_BAD)).trouble == "not_trusted"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (b"Ran 2 tests in 0.1s\n\nOK\n", ""),
        (b"Ran 2 tests in 0.1s\n\nOK (skipped=1, expected failures=1)\n", ""),
        (b"Ran 2 tests in 0.1s\n\nFAILED (unexpected successes=1)\n", ""),
        (b"Ran 2 tests in 0.1s\n\nFAILED (failures=1, skipped=2)\n", "not_trusted"),
        (b"Ran 2 tests in 0.1s\n", "not_trusted"),
    ],
)
def test_the_last_line_of_unittest(last: bytes, expected: str) -> None:
    session = replace(SESSION, framework="unittest", ends={"a": "PASSED", "b": "XPASS"})

    assert agreed(replace(HEARD, sessions=(session,), log=last), ParsedLog(statuses={})).trouble == expected


def test_of_several_runs_the_worse_end_of_a_test_counts() -> None:
    heard = replace(HEARD, sessions=(SESSION, replace(SESSION, ends={"t.py::a": "FAILED"})))

    assert agreed(heard, ParsedLog(statuses={})).ends == {"t.py::a": "FAILED", "t.py::b": "PASSED"}


class TestWithoutReporter:
    def test_the_log_alone(self) -> None:
        assert agree_on_log(HEARD, LOG, command="cargo test") == Results(ends=ENDS, aliases={})

    def test_the_worse_of_report_and_log(self) -> None:
        results = agree_on_log(HEARD, replace(LOG, statuses={"t.py::a": "FAILED"}), command="npx jest", report=ENDS)

        assert results.ends["t.py::a"] == "FAILED"
        assert results.trouble == "not_trusted"

    def test_a_report_that_the_log_knows_nothing_of(self) -> None:
        """Tested code knows where Jest will write, and may have written there and gone."""
        assert agree_on_log(HEARD, ParsedLog(statuses={}), command="npx jest", report=ENDS).trouble == "not_trusted"

    def test_failures_with_exit_code_0(self) -> None:
        assert agree_on_log(HEARD, replace(LOG, statuses={"a": "FAILED"}), command="go test").trouble == "not_trusted"

    def test_an_exit_code_that_no_test_explains(self) -> None:
        results = agree_on_log(replace(HEARD, returncode=2), LOG, command="go test")

        assert (results.trouble, results.tampering) == ("broke_off", ())
