"""Cases of the persistent shell: commands through the tool `bash`, in a sandbox of every kind that works here.

What a case expects is compared with the shell's own results; that the model's text tells the same is checked for every step.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.cases.areas.sandboxes import in_each_kind
from tests.cases.areas.texts import comparable, is_among, text_differences
from tests.cases.case import BadCase, Case, Check, Difference, text_of
from workers.sandbox import Sandbox, Shell, ShellResult
from workers.sandbox.base import DEFAULT_OUTPUT_BYTES, ShellStdin
from workers.tools.base import ToolResult
from workers.tools.bash_tool import NO_CHANGE_S, BashTool

CALL_LIMIT_S = 120.0
STATUS = {"refused": "error", "busy": "error"}
"""Words of the cases for words of ours; the others are the same."""
KNOWN = frozenset(
    {"status", "exit_code", "max_wall_s", "truncated", "max_answer_bytes", "max_rss_growth_mb", "or", "session_restarted", "cwd_is"}
)


class NotingShell:
    """A shell that also keeps what it answered last."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.last: ShellResult | None = None

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        no_change_timeout_s: float | None = None,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        stdin: ShellStdin = "null",
    ) -> ShellResult:
        self.last = await self._shell.run(
            command, timeout_s=timeout_s, no_change_timeout_s=no_change_timeout_s, max_output_bytes=max_output_bytes, stdin=stdin
        )
        return self.last

    async def wait(
        self, *, timeout_s: float, no_change_timeout_s: float | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    ) -> ShellResult:
        self.last = await self._shell.wait(timeout_s=timeout_s, no_change_timeout_s=no_change_timeout_s, max_output_bytes=max_output_bytes)
        return self.last

    async def send(self, text: str) -> bool:
        self.last = None
        return await self._shell.send(text)

    async def interrupt(self) -> None:
        await self._shell.interrupt()

    async def close(self) -> None:
        await self._shell.close()


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """One provider a kind for all cases, a sandbox a case."""
    async with in_each_kind(check_in) as check:
        yield check


async def check_in(case: Case, sandbox: Sandbox, session: str = "main") -> list[Difference]:
    """A case in a sandbox that holds nothing of others, in the shell and the kernel of that name, which nobody had yet."""
    steps, expects = case.input["steps"], case.expect["steps"]
    if len(steps) != len(expects):
        raise BadCase(f"{len(steps)} steps and {len(expects)} expectations")
    missing = [tool for tool in case.input.get("needs", ()) if (await sandbox.exec(["which", tool], timeout_s=10)).returncode != 0]
    if missing:
        return [Difference("programs in the sandbox", case.input["needs"], f"without {missing}")]
    shell = NotingShell(sandbox.shell(session))
    tool = BashTool(shell, no_change_s=float(case.input.get("no_change_s", NO_CHANGE_S)))
    found: list[Difference] = []
    for number, (step, expect) in enumerate(zip(steps, expects, strict=True), start=1):
        started, rss_before = time.monotonic(), _peak_rss_mb()
        answer = await tool(_arguments(step), timeout_s=CALL_LIMIT_S)
        wall_s, grown_mb = time.monotonic() - started, _peak_rss_mb() - rss_before
        outcomes = [expect] if "or" not in expect else [expect, expect["or"]]
        different = min((_differences(wanted, answer, shell.last, wall_s, grown_mb) for wanted in outcomes), key=len)
        different += _untold(answer, shell.last)
        found += [Difference(f"step {number}, {one.what}", one.expected, one.found) for one in different]
    for text in case.expect.get("no_process", ()):
        listed = (await sandbox.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", timeout_s=10)).stdout_text
        if text in listed:
            found.append(Difference("processes afterwards", f"none with {text!r}", "one"))
    return found


def _arguments(step: Mapping[str, Any]) -> dict[str, object]:
    """A step as the model would call the tool. Its limit is a limit on the command, but for steps that are to be left running."""
    arguments: dict[str, object] = {"command": text_of(step, "cmd")}
    for name in ("is_input", "interactive", "restart"):
        if name in step:
            arguments[name] = step[name]
    if "timeout_s" in step:
        arguments["timeout"] = step["timeout_s"]
    return arguments


def _differences(
    expect: Mapping[str, Any], answer: ToolResult, result: ShellResult | None, wall_s: float, grown_mb: float
) -> list[Difference]:
    unknown = {name for name in expect if name not in KNOWN and not name.startswith(("stdout", "text", "late"))}
    if unknown:
        raise BadCase(f"unknown expectations: {sorted(unknown)}")
    told = str(answer.details["status"])
    status, output = STATUS.get(told, told), result.output if result is not None else ""
    different = text_differences("stdout", expect, output) + text_differences("text", expect, answer.text)
    different += text_differences("late", expect, result.late_output if result is not None else "")
    code = answer.details.get("exit_code")
    if not is_among(status, expect["status"]):
        different.append(Difference("status", expect["status"], f"{status} ({answer.text[-200:]!r})"))
    if "exit_code" in expect and status != "timeout" and not is_among(code, expect["exit_code"]):
        different.append(Difference("exit code", expect["exit_code"], code))
    if wall_s > expect.get("max_wall_s", CALL_LIMIT_S):
        different.append(Difference("seconds", f"at most {expect['max_wall_s']}", round(wall_s, 2)))
    if "truncated" in expect and bool(answer.details["truncated_bytes"]) is not expect["truncated"]:
        different.append(Difference("truncated", expect["truncated"], answer.details["truncated_bytes"]))
    if len(answer.text.encode()) > expect.get("max_answer_bytes", 10**6):
        different.append(Difference("bytes of the answer", f"at most {expect.get('max_answer_bytes', 10**6)}", len(answer.text.encode())))
    if grown_mb > expect.get("max_rss_growth_mb", 50):
        different.append(Difference("MB of memory more", f"at most {expect.get('max_rss_growth_mb', 50)}", round(grown_mb, 1)))
    restarted = bool(answer.details.get("restarted"))
    if restarted and status not in ("closed", "timeout") and not expect.get("session_restarted"):
        different.append(Difference("the shell", "the same", "a new one"))
    if expect.get("session_restarted") and not restarted:
        different.append(Difference("the shell", "a new one, and said so", "the same"))
    if "cwd_is" in expect and str(answer.details.get("cwd", "")).rpartition("/")[2] != expect["cwd_is"]:
        different.append(Difference("working directory ends with", expect["cwd_is"], answer.details.get("cwd")))
    return different


def _untold(answer: ToolResult, result: ShellResult | None) -> list[Difference]:
    """What the shell said and the model was not told."""
    if result is None:
        return []
    untold = [part for part in (comparable(result.output), comparable(result.late_output)) if part not in comparable(answer.text)]
    if result.restarted and "new" not in answer.text:
        untold.append("that the shell is a new one")
    if result.exit_code is not None and f"xit code {result.exit_code}" not in answer.text:
        untold.append(f"exit code {result.exit_code}")
    return [Difference("the model is told", part, answer.text) for part in untold]


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
