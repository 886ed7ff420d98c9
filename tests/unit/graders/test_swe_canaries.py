"""Tests of ours among a task's: what they do by themselves, and what is made of how they ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workers.graders.swe.canaries import Canaries, make_canaries


def run_alone(canaries: Canaries) -> list[str]:
    """How they end where nothing stands between a test and its end."""
    there: dict[str, Any] = {}
    exec(compile(canaries.source, f"{canaries.name}.py", "exec"), there)
    tests: list[Callable[[], None]] = there["TESTS"]
    return [ends(test) for test in tests]


def ends(test: Callable[[], None]) -> str:
    try:
        test()
    except (AssertionError, KeyError, pytest.fail.Exception):
        return "failed"
    return "passed"


@pytest.mark.parametrize("framework", ["pytest", "unittest", "django"])
def test_those_fail_that_must(framework: str) -> None:
    for _ in range(20):
        canaries = make_canaries(framework)

        found = run_alone(canaries)

        assert [end == "failed" for end in found] == list(canaries.must_fail)
        assert canaries.trouble(found) == ""
        assert 0 < sum(canaries.must_fail) < len(canaries.must_fail)


def test_no_two_files_are_alike() -> None:
    one, other = make_canaries("pytest"), make_canaries("pytest")

    assert one.name != other.name
    assert one.source != other.source


def test_a_runner_in_which_all_pass_is_told() -> None:
    canaries = Canaries("t", "", (True, False, True))

    assert canaries.trouble(["passed"] * 3) == "2 tests of ours passed that must fail"
    assert canaries.trouble(["failed", "passed"]) == "2 tests of ours ended, of 3"


def test_a_runner_that_sets_them_up_otherwise_is_not() -> None:
    """A `conftest.py` may refuse tests that it does not know; these then ended nowhere."""
    canaries = Canaries("t", "", (True, False))

    assert canaries.trouble(["", ""]) == ""
    assert canaries.trouble(["failed", "failed"]) == ""
    assert canaries.trouble(None) == ""
