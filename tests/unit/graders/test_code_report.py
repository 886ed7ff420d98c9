"""What a runner said of a run, and what follows from it; a report comes from where the program is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.graders.code.problem import CallTest, CodeTests, RunLimits, StdioTest
from workers.graders.code.report import Report, read_report, verdict_of
from workers.graders.code.verdicts import Verdict

WELL = Report(
    ended="itself", exit=0, phase="running", own_s=0.1, cpu_s=0.1, peak_bytes=1 << 20, left="", out=b"1\n", err=b"", err_size=0, result=b""
)
LIMITS = RunLimits(time_s=2, memory_mb=256, output_bytes=1000)
STDIO = StdioTest(stdin="", expected="1")
SAID = (
    b"ready\nended itself\nexit 0\nown_s 0.1\nwall_s 0.2\ncpu_s 0.1\npeak_kib 1024\nphase running\nerr_size 1\n"
    b"left \nout 2\nerr 1\nresult 3\n\n"
)


def verdict(report: Report, *notices: str) -> Verdict:
    return verdict_of(report, STDIO, CodeTests(tests=[STDIO], limits=LIMITS), notices).verdict


def test_a_report_is_read_with_its_three_texts() -> None:
    report = read_report(SAID + b"1\nerrs")

    assert report is not None
    assert (report.out, report.err, report.result, report.peak_bytes) == (b"1\n", b"e", b"rrs", 1 << 20)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"ready\n",
        SAID + b"1\nerr",
        SAID + b"1\nerrs!",
        SAID.replace(b"out 2", b"out -2") + b"err",
        SAID.replace(b"exit 0", b"exit x") + b"1\nerrs",
        SAID.replace(b"left \n", b"") + b"1\nerrs",
        b"junk" + SAID + b"1\nerrs",
        b"\xff\n\n",
    ],
)
def test_what_does_not_add_up_is_no_report(said: bytes) -> None:
    assert read_report(said) is None


@pytest.mark.parametrize(
    ("changed", "notices", "expected"),
    [
        ({}, (), Verdict.ACCEPTED),
        ({"out": b"2"}, (), Verdict.WRONG_ANSWER),
        ({"exit": 1}, (), Verdict.RUNTIME_ERROR),
        ({"exit": 1, "phase": "compiling"}, (), Verdict.COMPILE_ERROR),
        ({"exit": -11}, (), Verdict.RUNTIME_ERROR),
        ({"exit": -9, "peak_bytes": 250 << 20}, (), Verdict.MEMORY_LIMIT),
        ({"exit": 1, "err": b"Traceback\nMemoryError\n"}, (), Verdict.MEMORY_LIMIT),
        ({"exit": 0, "err": b"MemoryError\n"}, (), Verdict.ACCEPTED),
        ({"exit": -9}, ("memory: the sandbox used more",), Verdict.MEMORY_LIMIT),
        ({"exit": 1, "err": b"RuntimeError: can't start new thread"}, (), Verdict.PROCESS_LIMIT),
        ({"ended": "time", "exit": -9, "own_s": 2.0}, (), Verdict.TIME_LIMIT),
        ({"exit": -24}, (), Verdict.TIME_LIMIT),
        ({"exit": 0, "own_s": 2.1}, (), Verdict.TIME_LIMIT),
        ({"ended": "time", "exit": -9, "out": b"x" * 1001}, (), Verdict.OUTPUT_LIMIT),
        ({"exit": 1, "err_size": 1001}, (), Verdict.OUTPUT_LIMIT),
        ({"exit": 1, "err": b"OSError: [Errno 27] File too large"}, (), Verdict.OUTPUT_LIMIT),
        ({"exit": -25}, (), Verdict.OUTPUT_LIMIT),
        ({"ended": "files", "exit": 0}, (), Verdict.OUTPUT_LIMIT),
        ({"exit": -9}, ("disk: the sandbox has more than its files",), Verdict.OUTPUT_LIMIT),
        ({"exit": -9}, ("processes: the sandbox has more",), Verdict.PROCESS_LIMIT),
        ({"peak_bytes": 500 << 20}, (), Verdict.MEMORY_LIMIT),
        ({"peak_bytes": 300 << 20}, (), Verdict.ACCEPTED),
    ],
)
def test_the_bound_that_was_broken_goes_before_the_way_it_ended(
    changed: dict[str, object], notices: tuple[str, ...], expected: Verdict
) -> None:
    assert verdict(replace(WELL, **changed), *notices) is expected  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"value": 2}', Verdict.ACCEPTED),
        (b'{"value": 3}', Verdict.WRONG_ANSWER),
        (b'{"not_plain": "a set"}', Verdict.WRONG_ANSWER),
        (b"", Verdict.RUNTIME_ERROR),
        (b"nonsense", Verdict.WRONG_ANSWER),
        (b"[]", Verdict.WRONG_ANSWER),
        (b'{"value": {"~": ["object"]}}', Verdict.WRONG_ANSWER),
        (b"[" * 100_000, Verdict.WRONG_ANSWER),
        (b'{"value": ' + b"9" * 6000 + b"}", Verdict.WRONG_ANSWER),
    ],
)
def test_what_a_call_returned_is_data_or_nothing(result: bytes, expected: Verdict) -> None:
    test = CallTest(arguments=[], accepted=[2])
    tests = CodeTests(tests=[test], entry="f")

    assert verdict_of(replace(WELL, result=result), test, tests).verdict is expected


def test_nothing_that_was_expected_is_told() -> None:
    secret = StdioTest(stdin="", expected="the-expected-text")

    told = verdict_of(replace(WELL, out=b"another"), secret, CodeTests(tests=[secret], limits=LIMITS))

    assert "the-expected-text" not in told.why
