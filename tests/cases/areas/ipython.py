"""Cases of the persistent Python: cells through the tool `python`, in a sandbox of every kind that works here."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.cases.areas.sandboxes import in_each_kind
from tests.cases.areas.texts import is_among, text_differences
from tests.cases.case import BadCase, Case, Check, Difference, text_of
from workers.sandbox import Kernel, KernelResult, Sandbox
from workers.sandbox.base import DEFAULT_OUTPUT_BYTES
from workers.tools.base import Tool, ToolResult
from workers.tools.bash_tool import BashTool
from workers.tools.python_tool import PythonTool
from workers.tools.working_folder import WorkingFolder

KNOWN = frozenset(
    {"status", "error_name", "result", "result_absent", "state_kept", "state_lost", "max_wall_s", "fresh_kernel", "truncated"}
)


class NotingKernel:
    """A kernel that also keeps what it answered last."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.last: KernelResult | None = None

    async def run(self, code: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES, max_images: int = 0) -> KernelResult:
        self.last = await self._kernel.run(code, timeout_s=timeout_s, max_output_bytes=max_output_bytes, max_images=max_images)
        return self.last

    async def interrupt(self) -> None:
        await self._kernel.interrupt()

    async def restart(self) -> None:
        await self._kernel.restart()

    async def close(self) -> None:
        await self._kernel.close()


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """One provider a kind for all cases, a sandbox a case."""
    async with in_each_kind(check_in) as check:
        yield check


async def check_in(case: Case, sandbox: Sandbox, session: str = "main") -> list[Difference]:
    """A case in a sandbox that holds nothing of others, in the shell and the kernel of that name, which nobody had yet."""
    cells, expects = case.input["cells"], case.expect["cells"]
    if len(cells) != len(expects):
        raise BadCase(f"{len(cells)} cells and {len(expects)} expectations")
    kernel, folder = NotingKernel(sandbox.kernel(session)), WorkingFolder()
    python, bash = PythonTool(kernel, folder=folder), BashTool(sandbox.shell(session), folder=folder)
    for name, text in case.input.get("files", {}).items():
        await sandbox.write_file(name, text.encode())
    found: list[Difference] = []
    for turn in range(int(case.input.get("repeat", 1))):
        for number, (cell, expect) in enumerate(zip(cells, expects, strict=True), start=1):
            different = await _run(cell, expect, kernel, python, bash)
            found += [Difference(f"round {turn + 1}, cell {number}, {one.what}", one.expected, one.found) for one in different]
    return found


async def _run(cell: Mapping[str, Any], expect: Mapping[str, Any], kernel: NotingKernel, python: Tool, bash: Tool) -> list[Difference]:
    """One cell, or one command of the shell beside it."""
    if "cmd" in cell:
        answer = await bash({"command": cell["cmd"]}, timeout_s=cell.get("timeout_s", 30))
        return text_differences("all_text", expect, answer.text)
    started = time.monotonic()
    answer = await python({"code": text_of(cell, "code")}, timeout_s=cell.get("timeout_s", 30))
    wall_s = time.monotonic() - started
    assert kernel.last is not None
    return _differences(expect, answer, kernel.last, wall_s)


def _differences(expect: Mapping[str, Any], answer: ToolResult, result: KernelResult, wall_s: float) -> list[Difference]:
    unknown = {name for name in expect if name not in KNOWN and not name.startswith(("stdout", "text", "all_text"))}
    if unknown:
        raise BadCase(f"unknown expectations: {sorted(unknown)}")
    answer.text.encode()  # whatever came, it can be handed on
    different = text_differences("stdout", expect, result.stdout) + text_differences("all_text", expect, answer.text)
    different += text_differences("text", expect, result.error_text)
    if result.error_text.strip() and result.error_text.strip() not in answer.text:
        different.append(Difference("the model is told", result.error_text, answer.text))
    if not is_among(result.status, expect["status"]):
        different.append(Difference("status", expect["status"], f"{result.status} ({answer.text[-200:]!r})"))
    if "error_name" in expect and result.error_name != expect["error_name"]:
        different.append(Difference("error", expect["error_name"], result.error_name))
    if "result" in expect and result.result != expect["result"]:
        different.append(Difference("result", expect["result"], result.result))
    if expect.get("result_absent") and result.result is not None:
        different.append(Difference("result", None, result.result))
    if wall_s > expect.get("max_wall_s", 120):
        different.append(Difference("seconds", f"at most {expect['max_wall_s']}", round(wall_s, 2)))
    lost = expect.get("state_lost", False if expect.get("state_kept") else None)
    if lost is not None and result.state_lost is not lost:
        different.append(Difference("state lost", lost, result.state_lost))
    if result.state_lost and "lost" not in answer.text:
        different.append(Difference("the model is told", "that variables are lost", answer.text))
    if "fresh_kernel" in expect and answer.details["fresh_kernel"] is not expect["fresh_kernel"]:
        different.append(Difference("new kernel", expect["fresh_kernel"], answer.details["fresh_kernel"]))
    if "truncated" in expect and bool(result.truncated_bytes) is not expect["truncated"]:
        different.append(Difference("truncated", expect["truncated"], result.truncated_bytes))
    return different
