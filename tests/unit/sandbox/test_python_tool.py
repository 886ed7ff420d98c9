"""The tool `python`: what the model reads, and that a failed sandbox is not the model's to read."""

from __future__ import annotations

import pytest

from workers.sandbox import KernelResult, SandboxGone
from workers.tools.base import Tool, ToolSet
from workers.tools.python_tool import PythonTool


class RecordedKernel:
    """Answers each cell with a prepared result and remembers what it was given."""

    def __init__(self, answer: KernelResult | Exception) -> None:
        self.answer = answer
        self.cells: list[tuple[str, float, int]] = []
        self.max_images = 0

    async def run(self, code: str, *, timeout_s: float, max_output_bytes: int = 0, max_images: int = 0) -> KernelResult:
        self.cells.append((code, timeout_s, max_output_bytes))
        self.max_images = max_images
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def interrupt(self) -> None: ...

    async def restart(self) -> None: ...

    async def close(self) -> None: ...


def a_result(output: str = "", **changes: object) -> KernelResult:
    values: dict[str, object] = {"status": "ok", "output": output, "stdout": "", "result": None, **changes}
    return KernelResult(**values)  # type: ignore[arg-type]  # fields by name


CASES = [
    (a_result("4\n"), "4", False),
    (a_result(), "(no output)", False),
    (a_result("Traceback\n", status="error", error_name="E"), "Traceback", True),
    (a_result("part\n", status="timeout"), "part\n[Interrupted: it ran longer than 5 s. Variables are kept.]", True),
    (
        a_result("", status="timeout", state_lost=True),
        "[Killed: it ran longer than 5 s and did not react to an interrupt. All variables are lost.]",
        True,
    ),
    (
        a_result("The kernel's process ended with signal 9 (SIGKILL).\n", status="kernel_died", state_lost=True),
        "The kernel's process ended with signal 9 (SIGKILL).\n[Python has ended. All variables are lost; the next call starts a new one.]",
        True,
    ),
    (a_result("1\n", state_lost=True), "1\n[Python has ended. All variables are lost; the next call starts a new one.]", False),
    (a_result("1\n", fresh_kernel=True), "[This ran in a new Python: the variables of earlier calls are gone.]\n1", False),
    (a_result("1\n", incomplete=True), "1\n[Some of the output was lost.]", False),
]


@pytest.mark.parametrize(("result", "text", "is_error"), CASES)
async def test_the_model_reads_the_output_and_what_became_of_its_session(result: KernelResult, text: str, is_error: bool) -> None:
    answer = await PythonTool(RecordedKernel(result))({"code": "x"}, timeout_s=5)

    assert (answer.text, answer.is_error) == (text, is_error)
    assert answer.details["status"] == result.status


async def test_code_time_and_bound_are_handed_on() -> None:
    kernel = RecordedKernel(a_result())

    await PythonTool(kernel, max_output_bytes=77)({"code": "x = 1"}, timeout_s=3)

    assert kernel.cells == [("x = 1", 3, 77)]


async def test_a_failed_sandbox_is_raised() -> None:
    tool = PythonTool(RecordedKernel(SandboxGone("i", "killed")))

    with pytest.raises(SandboxGone):
        await tool({"code": "x"}, timeout_s=3)


def test_it_is_a_tool_that_checks_its_arguments() -> None:
    tool: Tool = PythonTool(RecordedKernel(a_result()))
    tools = ToolSet([tool])

    assert tools.complaint("python", {"code": "x"}) == ""
    assert "missing" in tools.complaint("python", {})
    assert "type string" in tools.complaint("python", {"code": 3})
