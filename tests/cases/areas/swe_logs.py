"""Cases of logs and verdicts: what runners printed, and what a task makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.cases.case import BadCase, Case, Check, Difference, text_of
from workers.graders.swe import ParsedLog, judge, parse_log

_OF_LOG = frozenset({"status_map", "also_ok", "also_keys", "aliases", "package_errors", "errors", "summary", "doubts", "max_s"})
_OF_VERDICT = frozenset({"resolved", "reason", "fraction", "fixed", "not_fixed", "kept", "broken"})


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """Nothing to open."""
    yield _check


async def _check(case: Case) -> list[Difference]:
    known = _OF_LOG if case.input["kind"] == "parse_log" else _OF_VERDICT
    if unknown := case.expect.keys() - known:
        raise BadCase(f"unknown expectations: {sorted(unknown)}")
    return _log(case) if case.input["kind"] == "parse_log" else _verdict(case)


def _log(case: Case) -> list[Difference]:
    parsed = parse_log(case.input["framework"], text_of(case.input, "log"))
    expect = case.expect
    wanted: Mapping[str, str] = expect.get("status_map", {})
    also_ok: Mapping[str, Any] = expect.get("also_ok", {})
    found = []
    for name, status in wanted.items():
        right = [status, *_listed(also_ok.get(name, ()))]
        if parsed.status(name) not in right:
            found.append(Difference(f"status of {name}", right, parsed.status(name)))
    if "status_map" in expect:
        extra = parsed.statuses.keys() - wanted.keys() - set(expect.get("also_keys", ()))
        extra -= set(expect.get("aliases", ()))
        found += [Difference(f"a test named {name}", "none", parsed.statuses[name]) for name in sorted(extra)]
    found += _aliases(expect.get("aliases", {}), parsed)
    for field in ("package_errors", "errors"):
        if field in expect and sorted(parsed.errors) != sorted(expect[field]):
            found.append(Difference(field, expect[field], parsed.errors))
    if "summary" in expect and parsed.summary != expect["summary"]:
        found.append(Difference("summary", expect["summary"], parsed.summary))
    if "doubts" in expect and bool(parsed.doubts) != bool(expect["doubts"]):
        found.append(Difference("doubts", expect["doubts"], parsed.doubts))
    return found


def _listed(value: Any) -> Iterable[str]:
    return [value] if isinstance(value, str) else value


def _aliases(wanted: Any, parsed: ParsedLog) -> list[Difference]:
    """Second names: a list of them, or a map to a status or to the first name."""
    found = []
    for name in wanted:
        second = wanted[name] if isinstance(wanted, dict) else None
        got = parsed.status(name)
        for right in _listed(second) if second else ():
            right_status = parsed.status(right) or right
            if got != right_status:
                found.append(Difference(f"status of {name}", right_status, got))
        if got is None and not second:
            found.append(Difference(f"status of {name}", "any", None))
    return found


def _verdict(case: Case) -> list[Difference]:
    verdict = judge(case.input["status_map"], case.input.get("FAIL_TO_PASS", []), case.input.get("PASS_TO_PASS", []))
    found = []
    for field, right in case.expect.items():
        got = getattr(verdict, field)
        got = list(got) if isinstance(got, tuple) else got
        if got != right:
            found.append(Difference(field, right, got))
    return found
