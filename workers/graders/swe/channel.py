"""Runs a test command in a sandbox with a reporter of ours in it, and tells what the reporter said, what the log holds, and how it ended.

    worker           sandbox
    exec ------->    recorder.py ----> bash -c COMMAND ----> the runner, with a reporter in it
                         ^                                      |
                         +------- signed events, a socket ------+
    log  <-------    standard output (of the command, both streams)
    report <-----    standard error (of the recorder alone)

Names of the socket, of the reporter's modules and of its folder are random, so that nothing in a repository can stand in their place.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from workers.graders.errors import GraderError
from workers.graders.swe.canaries import Canaries, make_canaries
from workers.graders.swe.repository import lay_files
from workers.sandbox import Sandbox

GRADER = "swe"
MAX_LOG_BYTES = 16 * 1024 * 1024
REPORTED = {"pytest": "pytest_reporter.py", "unittest": "unittest_reporter.py", "django": "unittest_reporter.py"}
"""Frameworks that a reporter sits in."""
MARK = b"rollstream-report:"
MAX_REPORT_BYTES = 256 * 1024 * 1024
"""Unpacked; a run of a hundred thousand tests has a tenth of it."""
GRACE_S = 20.0
"""The recorder ends the command at its limit and has this long to say so."""
_PYTHONS = "/opt/miniconda3/bin/python3 /opt/conda/bin/python3 /usr/local/bin/python3 /usr/bin/python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the reporter of one process said."""

    framework: str
    ends: Mapping[str, str]
    """How each test ended, by its name; `NO_END` = it began only."""
    aliases: Mapping[str, str]
    """The same by other names."""
    finish: Mapping[str, Any] | None  # the runner's own account, as JSON
    """None = the run did not come to its end."""
    tampering: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """All that is known of one run of a test command."""

    log: bytes
    log_was_cut: bool
    returncode: int
    timed_out: bool
    took_s: float
    sessions: tuple[Session, ...] = ()
    has_report: bool = True
    """False = the recorder was ended before it could say anything."""
    tampering: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    structured: bytes = field(default=b"", repr=False)
    """What a runner wrote for machines, of frameworks without a reporter."""


async def run_with_reporter(
    sandbox: Sandbox,
    folder: str,
    command: str,
    framework: str,
    *,
    timeout_s: float,
    env: Mapping[str, str],
    max_log_bytes: int = MAX_LOG_BYTES,
) -> Heard:
    """Runs `command` by bash in `folder`.

    Raises:
        GraderError: the sandbox has no Python, or no place for our files.
    """
    name = f"m{secrets.token_hex(8)}"
    there = await sandbox.exec(["mktemp", "-d"], timeout_s=20)
    place = there.stdout_text.strip()
    if there.returncode != 0 or not place.startswith("/"):
        raise GraderError(f"no temporary folder in the sandbox: {there.stderr_text[-300:]}", grader=GRADER)
    ours = files(__package__) / "reporters"
    channel, watch, plugin = f"{name}_channel", f"{name}_watch", f"{name}_plugin"
    canaries = make_canaries(framework)
    reporter = (ours / REPORTED[framework]).read_text(encoding="utf-8")
    for mark, ours_by_name in (("@CHANNEL@", channel), ("@WATCH@", watch), ("@CANARIES@", canaries.name)):
        reporter = reporter.replace(mark, ours_by_name)
    programs = {
        f"{name}.py": (ours / "recorder.py").read_bytes(),
        f"{name}/{channel}.py": (ours / "channel.py").read_bytes(),
        f"{name}/{watch}.py": (ours / "runner_watch.py").read_bytes(),
        f"{name}/{plugin if framework == 'pytest' else 'sitecustomize'}.py": reporter.encode(),
        f"{name}/{canaries.name}.py": canaries.source.encode(),
    }
    await lay_files(sandbox, place, programs)
    place = f"{place}/{name}"
    options = f"-p {plugin}" if framework == "pytest" else ""
    settings = {
        "command": with_ours_in_front(command, place, options),
        "timeout_s": timeout_s,
        "env": dict(env),
        "socket": f"@rollstream-{secrets.token_hex(16)}" if sys.platform.startswith("linux") else "",
        "place": place,
        "options": options,
    }
    find = f'for p in "$(command -v python3)" "$(command -v python)" {_PYTHONS}; do [ -x "$p" ] && exec "$p" -I "$0"; done; exit 127'
    done = await sandbox.exec(
        ["bash", "-c", find, f"{place}.py"],
        stdin=json.dumps(settings).encode(),
        cwd=folder,
        timeout_s=timeout_s + GRACE_S,
        max_output_bytes=max_log_bytes,
    )
    report = _report(done.stderr)
    if report is None:
        if done.returncode in (126, 127) and not done.stdout:
            raise GraderError(f"no Python in the sandbox to run the recorder with: {done.stderr_text[-300:]}", grader=GRADER)
        return Heard(
            log=done.stdout,
            log_was_cut=bool(done.truncated_bytes),
            returncode=done.returncode,
            timed_out=done.timed_out,
            took_s=done.took_s,
            has_report=False,
            notices=done.notices,
        )
    told = [f"{report['unknown']} connections to the channel that are no reporter's"] if report["unknown"] else []
    if done.returncode != (128 - report["returncode"] if report["returncode"] < 0 else report["returncode"]):
        told.append(f"the recorder ended with {done.returncode} and reported {report['returncode']}")
    return Heard(
        log=done.stdout,
        log_was_cut=bool(done.truncated_bytes),
        returncode=report["returncode"],
        timed_out=report["timed_out"],
        took_s=report["took_s"],
        sessions=tuple(session_of(found, canaries) for found in report["sessions"]),
        tampering=tuple(told),
        notices=done.notices,
    )


def with_ours_in_front(command: str, place: str, options: str) -> str:
    """A command that sets Python's path or pytest's options itself gets ours in front of its own."""
    command = re.sub(r"(?<![\w$])PYTHONPATH=", f"PYTHONPATH={place}:", command)
    return re.sub(r"(?<![\w$])PYTEST_ADDOPTS=", f'PYTEST_ADDOPTS="{options} "', command) if options else command


def _report(stderr: bytes) -> dict[str, Any] | None:  # as JSON
    """The last line that the recorder wrote; None when there is none, or not a whole one."""
    at = stderr.rfind(MARK)
    if at < 0:
        return None
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(stderr[at + len(MARK) :].strip(), validate=True), MAX_REPORT_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            return None
        found = json.loads(content.decode("utf-8", "surrogateescape"))
    except (ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) else None


def session_of(found: Mapping[str, Any], canaries: Canaries) -> Session:  # as JSON
    """A session as the recorder tells it, with what is wrong in it."""
    told, finish = list(found["tampering"]), found["finish"]
    told += filter(None, map(canaries.trouble, found["canaries"] or ()))
    if finish is not None:
        if found["canaries"] is None:
            told.append("the run came to its end, and not to tests of ours")
        if not found["said_bye"] and not finish.get("leaves"):
            told.append("the run came to its end, and its process did not end by itself")
        if found["disorder"] and not finish.get("parallel") and found["framework"] == "pytest":
            told.append(found["disorder"])
    if found["stray"]:
        told.append(f"{found['stray']} lines on the channel that the reporter did not write")
    if found["foreign"]:
        told.append("another process wrote on the reporter's connection")
    if found["overlaps"]:
        told.append("a second runner reported while the first ran")
    ends = {name: status for name, (status, _) in found["tests"].items()}
    aliases: dict[str, str] = {}
    for status, others in found["tests"].values():
        for other in others:
            if other not in ends:
                aliases[other] = _worse(aliases.get(other, status), status)
    return Session(framework=found["framework"], ends=ends, aliases=aliases, finish=finish, tampering=tuple(told))


_WORSE = ("RERUN", "PASSED", "XPASS", "XFAIL", "SKIPPED", "XFAIL_NOTRUN", "NO_END", "ERROR", "FAILED")


def _worse(one: str, other: str) -> str:
    return max(one, other, key=_WORSE.index)
