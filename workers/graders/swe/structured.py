"""Runners that write for machines by themselves, on a channel apart from the log: `go test -json`, and Jest's `--json --outputFile`.

Go's events are turned into the log that `go test -v` prints as well, so that the same parser reads it; events and Jest's report are held
against the log, and the worse of the two counts. Tested code has no descriptor of either channel: `go` reads what a test prints and writes
the events itself, Jest opens its file when all tests are over. A report without a log that comes to its end is not believed.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace

from workers.graders.swe.channel import MAX_LOG_BYTES, Heard
from workers.sandbox import Sandbox
from workers.sandbox.errors import SandboxFileError

STRUCTURED = frozenset(("go", "jest"))
MAX_EVENTS_BYTES = 4 * MAX_LOG_BYTES
"""Each line of a log is an event of several times its length."""
_GO_TEST = re.compile(r"\bgo\s+test\b(?![^\n;&|]*\s-json\b)")
_PACKAGE_SCRIPT = re.compile(r"\b(npm|pnpm)\s+(test|t|run\s+\S+)\b[^\n;&|]*")
_JEST = re.compile(r"\b(jest|yarn\s+(run\s+)?\S+)\b[^\n;&|]*")


async def run_structured(sandbox: Sandbox, folder: str, command: str, framework: str, *, timeout_s: float, env: Mapping[str, str]) -> Heard:
    """Runs `command` by bash in `folder`, told to write for machines."""
    place = f"/tmp/rollstream-{secrets.token_hex(8)}.json"
    asked = with_json(command, framework, place)
    if framework == "go":  # events are standard output; what the build says is the other stream
        done = await sandbox.exec(asked, cwd=folder, env=env, timeout_s=timeout_s, max_output_bytes=MAX_EVENTS_BYTES)
        log, is_whole = go_log(done.stdout)
        log = done.stderr + log
    else:
        done = await sandbox.exec(f"exec 2>&1\n{asked}", cwd=folder, env=env, timeout_s=timeout_s, max_output_bytes=MAX_LOG_BYTES)
        log, is_whole = done.stdout, True
    heard = Heard(
        log=log,
        log_was_cut=bool(done.truncated_bytes) or len(log) > MAX_LOG_BYTES or not is_whole,
        returncode=done.returncode,
        timed_out=done.timed_out,
        took_s=done.took_s,
        notices=done.notices,
    )
    if framework == "go":
        return replace(heard, structured=done.stdout)
    try:
        return replace(heard, structured=await sandbox.read_file(place, max_bytes=MAX_EVENTS_BYTES))
    except SandboxFileError:  # it crashed before the end, or is of a kind that does not know the option: the log tells
        return heard


def with_json(command: str, framework: str, place: str) -> str:
    """The command with the runner's own option for machines; as it is, where it has none that we know to change."""
    if framework == "go":
        return _GO_TEST.sub("go test -json", command)
    options = f"--json --outputFile={place}"
    if _PACKAGE_SCRIPT.search(command):
        return _PACKAGE_SCRIPT.sub(
            lambda found: _with(found[0], options if " -- " in found[0] else f"-- {options}"), command, count=1
        ).strip()
    return _JEST.sub(lambda found: _with(found[0], options), command, count=1).strip()


def _with(words: str, options: str) -> str:
    return f"{words.rstrip()} {options} "


def ends_of(framework: str, written: bytes) -> dict[str, str] | None:
    """How tests ended, by what a runner wrote for machines; None when it is nothing of the kind."""
    if not written:
        return None
    return go_ends(written) if framework == "go" else jest_ends(written)


def go_ends(events: bytes) -> dict[str, str] | None:
    """How tests ended, by `go`'s own events; of tests of one name in several packages the worst. One that began only has `NO_END`."""
    words = {"pass": "PASSED", "fail": "FAILED", "skip": "SKIPPED"}
    ends: dict[tuple[str, str], str] = {}
    for line in events.split(b"\n"):
        try:
            event = json.loads(line) if line.startswith(b"{") else None
        except ValueError:
            continue
        if not isinstance(event, dict) or not isinstance(event.get("Test"), str):
            continue
        test = (str(event.get("Package", "")), event["Test"])
        if event.get("Action") == "run":
            ends.setdefault(test, "NO_END")
        elif event.get("Action") in words and test in ends:  # a test that never began has no end
            ends[test] = words[event["Action"]]
    named: dict[str, str] = {}
    for (_, name), status in ends.items():
        if named.get(name, "PASSED") == "PASSED":
            named[name] = status
    return named or None


def go_log(events: bytes) -> tuple[bytes, bool]:
    """The log that `go test` would have printed with `-v`, and whether every line that looks like an event is a whole one.

    A line that is no event (an older `go` prints what does not build so) stands for itself.
    """
    log: list[str] = []
    is_whole = True
    for line in events.split(b"\n"):
        if not line.startswith(b"{"):
            if line.strip():
                log.append(line.decode("utf-8", "replace") + "\n")
            continue
        try:
            event = json.loads(line)
        except ValueError:
            is_whole = False
            continue
        if isinstance(event, dict) and event.get("Action") in ("output", "build-output") and isinstance(event.get("Output"), str):
            log.append(event["Output"])
    return "".join(log).encode(), is_whole


def jest_ends(report: bytes) -> dict[str, str] | None:
    """How tests ended, by their titles joined as `group > title`; None when it is no report.

    A title that several files have counts as its worst.
    """
    words = {"passed": "PASSED", "failed": "FAILED", "pending": "SKIPPED", "todo": "SKIPPED", "skipped": "SKIPPED", "disabled": "SKIPPED"}
    try:
        found = json.loads(report)
        ends: dict[str, str] = {}
        for suite in found["testResults"]:
            for test in suite["assertionResults"]:
                name = " > ".join((*test.get("ancestorTitles", ()), test["title"]))
                status = words.get(test["status"], "ERROR")
                if ends.get(name, "PASSED") == "PASSED":
                    ends[name] = status
    except (ValueError, KeyError, TypeError):
        return None
    return ends
