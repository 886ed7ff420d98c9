"""What the runner inside said of one test, and the verdict that follows from it and from what the sandbox saw.

The report comes from where the program is, so it is read as anything from there is: lengths are
checked, and what does not add up is no report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.graders.code.compare import returned_value, same_text, same_value
from workers.graders.code.problem import MIB, CallTest, CodeTests, RunLimits, StdioTest
from workers.graders.code.verdicts import TestVerdict, Verdict

READY = b"ready\n"
TOLD_CHARS = 600
"""Of what a program wrote to standard error, kept with its verdict."""
NEAR_MEMORY = 0.85
"""A program that was killed with so much of its memory in use was killed for it."""
NO_MEMORY = ("MemoryError", "numpy._core._exceptions._ArrayMemoryError", "numpy.core._exceptions._ArrayMemoryError")
TOO_LARGE = "OSError: [Errno 27]"
NO_PROCESS = ("RuntimeError: can't start new thread", "BlockingIOError: [Errno 11]", "OSError: [Errno 11]")
NOTICED = {"memory": Verdict.MEMORY_LIMIT, "disk": Verdict.OUTPUT_LIMIT, "processes": Verdict.PROCESS_LIMIT}
"""By the word that a notice of the sandbox begins with."""
SHARED_BYTES = 128 * MIB
"""Of libraries in memory, which are counted with a process and are not its own; a program that ends before anybody looks has few."""
_SIGXCPU, _SIGXFSZ = 24, 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How one run of the program went."""

    ended: str
    """`itself`; `time` = it was ended when its time was over; `cap` = it was ended without having had its time; `files` = it had too much
    of these."""
    exit: int
    """Its exit code; minus the signal's number."""
    phase: str
    """`compiling` when it ended before it began."""
    own_s: float
    cpu_s: float
    peak_bytes: int
    left: str
    """What it left outside its folder; empty = nothing."""
    out: bytes
    """One byte more than it may write when it wrote too much."""
    err: bytes
    """The end of it."""
    err_size: int
    result: bytes
    """What a call returned, as JSON; empty when it did not return."""


def read_report(said: bytes) -> Report | None:
    """The report that the runner wrote after `ready`; None when there is none that adds up."""
    head, found, rest = said.removeprefix(READY).partition(b"\n\n")
    if not found:
        return None
    try:
        fields: Mapping[str, str] = dict(line.split(" ", 1) for line in head.decode().split("\n"))
        sizes = {name: int(fields[name]) for name in ("out", "err", "result")}
        if min(sizes.values()) < 0 or sum(sizes.values()) != len(rest):
            return None
        end_of_err = sizes["out"] + sizes["err"]
        return Report(
            ended=fields["ended"],
            exit=int(fields["exit"]),
            phase=fields["phase"],
            own_s=float(fields["own_s"]),
            cpu_s=float(fields["cpu_s"]),
            peak_bytes=int(fields["peak_kib"]) * 1024,
            left=fields["left"],
            out=rest[: sizes["out"]],
            err=rest[sizes["out"] : end_of_err],
            err_size=int(fields["err_size"]),
            result=rest[end_of_err:],
        )
    except (KeyError, ValueError):
        return None


def verdict_of(report: Report, test: StdioTest | CallTest, tests: CodeTests, notices: tuple[str, ...] = ()) -> TestVerdict:
    """The verdict on one test.

    Args:
        notices: what the sandbox ended or refused for a bound of its own meanwhile.
    """
    failed = failure_of(report, tests.limits, notices)
    if failed is not None:
        return failed
    verdict, why = _judged(report, test, tests)
    return TestVerdict(verdict=verdict, why=why, own_s=report.own_s, peak_bytes=report.peak_bytes)


def failure_of(report: Report, limits: RunLimits, notices: tuple[str, ...] = ()) -> TestVerdict | None:
    """The verdict on a program that did not end well; None when it did."""
    verdict = _how_it_failed(report, limits, notices)
    if verdict is None:
        return None
    return TestVerdict(verdict=verdict, why=_told(report, notices), own_s=report.own_s, peak_bytes=report.peak_bytes)


def _how_it_failed(report: Report, limits: RunLimits, notices: tuple[str, ...]) -> Verdict | None:
    """None = it ended well. The bound that it broke goes before the way it died of that."""
    last = _last_line(report.err)
    too_much = max(len(report.out), report.err_size, len(report.result)) > limits.output_bytes
    failed = report.exit != 0
    if too_much or report.ended == "files":
        return Verdict.OUTPUT_LIMIT
    if report.ended == "time" or report.own_s >= limits.time_s or report.exit == -_SIGXCPU:
        return Verdict.TIME_LIMIT
    if failed and last.startswith(NO_MEMORY):
        return Verdict.MEMORY_LIMIT
    memory_bytes = limits.memory_mb * MIB
    if report.peak_bytes > memory_bytes + SHARED_BYTES or (report.exit < 0 and report.peak_bytes >= NEAR_MEMORY * memory_bytes):
        return Verdict.MEMORY_LIMIT
    if failed and (last.startswith(TOO_LARGE) or report.exit == -_SIGXFSZ):
        return Verdict.OUTPUT_LIMIT
    noticed = verdict_of_notices(notices) if failed else None
    if noticed is not None:
        return noticed
    if report.exit == -9 and report.cpu_s >= limits.time_s:
        return Verdict.TIME_LIMIT
    if failed and last.startswith(NO_PROCESS):
        return Verdict.PROCESS_LIMIT
    if failed:
        return Verdict.COMPILE_ERROR if report.phase == "compiling" else Verdict.RUNTIME_ERROR
    return None


def verdict_of_notices(notices: Sequence[str]) -> Verdict | None:
    """What the sandbox ended or refused something for."""
    return next((verdict for notice in notices for word, verdict in NOTICED.items() if notice.startswith(word)), None)


def _judged(report: Report, test: StdioTest | CallTest, tests: CodeTests) -> tuple[Verdict, str]:
    if isinstance(test, StdioTest):
        same = same_text(report.out, test.expected, tests.float_tol)
        return (Verdict.ACCEPTED, "") if same else (Verdict.WRONG_ANSWER, "the output is another")
    if not report.result:
        return Verdict.RUNTIME_ERROR, "it ended before the function returned"
    try:
        answer = json.loads(report.result)
        if "not_plain" in answer:
            return Verdict.WRONG_ANSWER, f"the function returned {str(answer['not_plain'])[:200]}"
        value = returned_value(answer["value"])
    except (ValueError, KeyError, TypeError, RecursionError) as refused:
        return Verdict.WRONG_ANSWER, f"the function returned what is no answer: {str(refused)[:200]}"
    same = any(same_value(value, accepted, tests.float_tol) for accepted in test.accepted)
    return (Verdict.ACCEPTED, "") if same else (Verdict.WRONG_ANSWER, "the function returned another value")


def _told(report: Report, notices: tuple[str, ...]) -> str:
    said = report.err.decode("utf-8", "replace").strip()[-TOLD_CHARS:]
    if report.ended == "files":
        return "more files, or larger or deeper ones, than a program may have"
    ended = f"ended by signal {-report.exit}" if report.exit < 0 and report.ended == "itself" else ""
    return "; ".join(filter(None, (*notices, ended, said)))


def _last_line(err: bytes) -> str:
    lines = err.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
