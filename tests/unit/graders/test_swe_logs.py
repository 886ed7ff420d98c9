"""Logs of test runners and verdicts: what the cases (`tests/cases/data/swe*.jsonl`) do not say."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.graders.swe.logs import FRAMEWORKS, ParsedLog, Status, UnknownFramework, parse_log
from workers.graders.swe.verdict import has_passed, judge

PIECES = (
    *("=== test session starts ===", "collected 1 item", "=== short test summary info ===", "=== 1 passed in 0.1s ===", "=== FAILURES ==="),
    *("t.py::test_a[x - y] PASSED", "PASSED t.py::test_a[x", "FAILED t.py::t - ] - x", "[gw0] [ 1%] ERROR a::b", "XFAIL a::b - [NOTRUN] x"),
    *(
        "test_a (m.T) ... ok",
        "test_a (m.T) ... ",
        "ok",
        "=" * 70,
        "FAIL: test_a (m.T) (i=1)",
        "-" * 70,
        "Ran 2 tests in 0.1s",
        "FAILED (errors=1)",
    ),
    *(
        "=== RUN   TestA",
        "--- PASS: TestA (0.00s)",
        "    --- FAIL: TestA/b (0.00s)",
        "FAIL\tp\t0.1s",
        '{"Action":"pass","Test":"T","Package":"p"}',
    ),
    *("PASS  a.test.js", "  group", "    ✓ t (1 ms)", "● Test suite failed to run", "Tests: 1 passed", ""),
    *("running 2 tests", "test a ... ok", "test a ... ", "failures:", "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured;"),
    *("a/test_x.py[2]", "test_a F    [FAIL]", "\x1b[31m", "\r", "\b", "{", "test_é\u2028 ok"),
)


@given(st.sampled_from(FRAMEWORKS), st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=30))
def test_whatever_a_log_holds_is_read_into_known_words(framework: str, lines: list[str]) -> None:
    parsed = parse_log(framework, "\n".join(lines))

    assert set(parsed.statuses.values()) | set(parsed.aliases.values()) <= {status.value for status in Status}
    assert not parsed.statuses.keys() & parsed.aliases.keys()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_empty_log_names_nothing_and_has_no_end(framework: str) -> None:
    assert parse_log(framework, "") == ParsedLog(statuses={}, summary=None)


def test_a_runner_without_a_parser_is_named() -> None:
    with pytest.raises(UnknownFramework, match="mocha"):
        parse_log("mocha", "")


HOSTILE = {
    "a name that never ends": "FAILED a::b[" + " - " * 150_000,
    "progress without an end": "t.py::test ... \n" * 30_000,
    "runs within runs": "=== test session starts ===\ncollected 1 item\n=== 1 passed in 1s ===\n" * 5_000,
    "summaries": "=== short test summary info ===\n" * 20_000,
    "tests that begin": "test_a (m.T) ... \n" * 25_000,
    "blocks": ("=" * 70 + "\nFAIL: a (b) (i=1)\n") * 5_000,
    "events": '{"a":' * 80_000,
    "blanks": " " * 400_000 + "--- PASS: ",
    "groups": "PASS a.js\n" + "".join(" " * (depth % 900) + "g\n" for depth in range(900)),
    "times": "PASS a.js\n ✓ x" + " (1 ms, " * 50_000,
    "escapes": "\x1b[0;" * 100_000,
    "backspaces": "ab\b\b" * 100_000,
    "verdicts": "a.py[3] \n" + "test_a ok   [" * 30_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_reading_takes_time_in_proportion_to_the_log(what: str) -> None:
    """A log of some hundred kilobytes that made a pattern try every way to split it took hours."""
    for framework in FRAMEWORKS:
        before = time.process_time()
        parse_log(framework, HOSTILE[what])
        assert time.process_time() - before < 5


def test_an_alias_is_asked_only_where_no_test_has_the_name() -> None:
    assert judge({"a": "PASSED"}, ["title"], ["a"], aliases={"title": "PASSED", "a": "FAILED"}).resolved
    assert not judge({"a": "FAILED"}, ["title"], ["a"], aliases={"title": "PASSED", "a": "PASSED"}).resolved


def test_a_verdict_tells_the_first_tests_at_fault_and_how_many_more() -> None:
    verdict = judge({f"t{number}": "FAILED" for number in range(9)}, [f"t{number}" for number in range(9)], [])

    assert verdict.detail.startswith("t0 FAILED, ")
    assert verdict.detail.endswith(" and 4 more")
    assert verdict.fraction == 0.0


@pytest.mark.parametrize(("status", "passed"), [("PASSED", True), ("XPASS", True), ("XFAIL", True), ("SKIPPED", False), ("RERUN", False)])
def test_which_ends_count_as_passed(status: str, passed: bool) -> None:
    assert has_passed(status) is passed
