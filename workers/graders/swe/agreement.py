"""From what was heard of a test run to how its tests ended: the events, the exit code and the log must tell one story.

Invariants
    - Where they differ the worse one counts: a test that one of them names failed has failed, and a run whose parts do not fit is no
      success, whatever its tests are said to have done.
    - A run that did not come to its end is no success: nobody knows what the rest of it would have said.
    - A log that was cut is not read.
    - Differences are told as tampering; running out of time, a crash and a long log are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from workers.graders.swe.channel import Heard, Session
from workers.graders.swe.logs import ParsedLog
from workers.graders.swe.verdict import has_passed

_HIDES_EXIT_CODE = re.compile(r"\|\||[|;&]\s*\S")
"""The exit code of such a command may be another program's than the runner's."""
_FAILING = ("FAILED", "ERROR")
_COLOUR = rb"(?:\x1b\[[0-9;]*m)*"
_LAST_LINES = {  # up to its version 5.1, pytest writes "seconds"
    "pytest": re.compile(rb"^" + _COLOUR + rb"(?:=+ )?" + _COLOUR + rb"((?:\d+ |no tests ran)[^\n]{0,300}? in \d+\.\d+ ?s)", re.MULTILINE),
    "unittest": re.compile(rb"^((?:OK|FAILED|NO TESTS RAN)(?: \([^\n]{0,300}\))?)\r?$", re.MULTILINE),
}
_WENT_WRONG = re.compile(r"[1-9]\d* (failed|error)|FAILED \((?!(expected failures|unexpected successes)=\d+\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """How the tests of a run ended."""

    ends: Mapping[str, str]
    aliases: Mapping[str, str]
    trouble: str = ""
    """Why the run as a whole is no success: `timed_out`, `log_too_long`, `broke_off` (it never came to its end), `not_trusted` (its parts
    tell different stories). Empty when nothing is in the way."""
    detail: str = ""
    tampering: tuple[str, ...] = ()


def agree(heard: Heard, log: ParsedLog | None, *, command: str) -> Results:
    """What counts of a run with a reporter in it.

    Args:
        log: what the log says; None when it was cut.
    """
    told = [*heard.tampering, *(why for session in heard.sessions for why in session.tampering)]
    ends: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for session in heard.sessions:
        _merge(ends, session.ends)
        _merge(aliases, session.aliases)
    if heard.timed_out:
        return Results(ends=ends, aliases=aliases, trouble="timed_out", detail=f"after {heard.took_s:.0f} s", tampering=tuple(told))
    if not heard.has_report:
        told.append("what listens to the tests was ended before them")
    unfinished = [session for session in heard.sessions if session.finish is None]
    if unfinished and heard.returncode == 0:
        told.append("exit code 0 of a run that did not come to its end")
    if not told and not unfinished and log is not None:
        told += _differences(heard, command)
    if log is not None:
        told += _named_failed(ends, aliases, log)
    # tests that run a runner themselves make an honest log look strange: doubts are told of a run that something else is wrong with
    doubts = log.doubts if log and (told or any(_bad(session) for session in heard.sessions)) else ()
    tampering = tuple(dict.fromkeys((*told, *doubts)))
    if told:
        return Results(ends=ends, aliases=aliases, trouble="not_trusted", detail=told[0], tampering=tampering)
    if unfinished:
        how = ", ".join(heard.notices) or f"exit code {heard.returncode}"
        return Results(ends=ends, aliases=aliases, trouble="broke_off", detail=how, tampering=tampering)
    if log is None:
        return Results(ends=ends, aliases=aliases, trouble="log_too_long", detail=f"over {len(heard.log)} bytes", tampering=tampering)
    return Results(ends=ends, aliases=aliases, tampering=tampering)


def agree_on_log(heard: Heard, log: ParsedLog | None, *, command: str, report: Mapping[str, str] | None = None) -> Results:
    """What counts of a run that only its log, and what the runner wrote for machines, tell of.

    Args:
        report: ends by the runner's own report; None = there is none.
    """
    if heard.timed_out:
        return Results(ends=report or {}, aliases={}, trouble="timed_out", detail=f"after {heard.took_s:.0f} s", tampering=heard.tampering)
    if log is None:
        return Results(ends={}, aliases={}, trouble="log_too_long", detail=f"over {len(heard.log)} bytes", tampering=heard.tampering)
    ends, aliases = dict(log.statuses if report is None else report), dict(log.aliases)
    told = list(heard.tampering)
    if report is not None:
        told += _named_failed(ends, aliases, log)
        if ends and not (log.statuses or log.summary):
            told.append("a report of tests that the log knows nothing of")
    trouble, detail = "", ""
    if not _HIDES_EXIT_CODE.search(command):
        went_wrong = any(status in _FAILING for status in ends.values()) or bool(log.errors)
        if heard.returncode == 0 and went_wrong:
            told.append("tests went wrong, and the exit code is 0")
        elif heard.returncode != 0 and not went_wrong:
            trouble, detail = "broke_off", ", ".join(heard.notices) or f"exit code {heard.returncode}, and no test went wrong"
    if told:
        trouble, detail = "not_trusted", told[0]
    return Results(ends=ends, aliases=aliases, trouble=trouble, detail=detail, tampering=tuple(dict.fromkeys((*told, *log.doubts))))


def _merge(known: dict[str, str], more: Mapping[str, str]) -> None:
    """The worse of two ends stays."""
    for name, status in more.items():
        if name not in known or (has_passed(known[name]) and not has_passed(status)):
            known[name] = status


def _differences(heard: Heard, command: str) -> list[str]:
    """Where the runner's own account, the exit code and the log's last line do not fit. Of one run: several have one exit code."""
    if len(heard.sessions) != 1:
        return []
    session, finish = heard.sessions[0], heard.sessions[0].finish or {}
    told: list[str] = []
    said = int(finish.get("exit", 0))
    if not _HIDES_EXIT_CODE.search(command) and (said == 0) != (heard.returncode == 0):
        told.append(f"the runner ended with {said}, its process with {heard.returncode}")
    bad = _bad(session)
    shown = finish.get("shown", {})
    if bool(shown.get("failed", 0) + shown.get("error", 0)) != bool(bad):
        told.append(f"{bad} tests went wrong, and the runner counts {shown}")
    last = _last_line(session.framework, heard.log)
    if last is None:
        if finish.get("verbose", 0) >= -1:
            told.append("the log does not have the runner's last line")
    elif bool(_WENT_WRONG.search(last)) != bool(bad):
        told.append(f"{bad} tests went wrong, and the log ends with {last!r:.200}")
    return told


def _last_line(framework: str, log: bytes) -> str | None:
    """The runner's last line of all: tests that run a runner themselves print others before."""
    found = None
    for found in _LAST_LINES["pytest" if framework == "pytest" else "unittest"].finditer(log):  # noqa: B007  # the last one is meant
        pass
    return None if found is None else found[1].decode("utf-8", "replace")


def _bad(session: Session) -> int:
    return sum(status in _FAILING for status in session.ends.values())


def _named_failed(ends: dict[str, str], aliases: dict[str, str], log: ParsedLog) -> list[str]:
    """Tests that passed by the events and not by the log; from here on they have failed."""
    told: list[str] = []
    for known in (ends, aliases):
        for name, status in known.items():
            other = log.statuses.get(name)
            if has_passed(status) and other in _FAILING:
                known[name] = other
                told.append(f"{name} passed, and the log says {other}")
    return told[:5]
