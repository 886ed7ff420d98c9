"""The tool `python`: cells in the sandbox's IPython, whose variables stay between calls.

A cell starts where the other tools stand (`working_folder.py`): Python begins in the shell's directory, and follows when a command changed
it. That takes a cell of its own, sent only then; no variable and no `_` of the model's is touched by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pipeline.failpoints import failpoint
from pipeline.messages import Json
from workers.sandbox.base import DEFAULT_OUTPUT_BYTES, Kernel
from workers.sandbox.results import KernelResult
from workers.tools.base import ToolResult
from workers.tools.notices import notice_lines
from workers.tools.working_folder import WorkingFolder

NO_OUTPUT = "(no output)"
FRESH = "[This ran in a new Python: the variables of earlier calls are gone.]"
INCOMPLETE = "[Some of the output was lost.]"
GO = "try: __import__('os').chdir({folder!r})\nexcept OSError: pass"
MAX_IMAGES = 4
"""Of one cell; further ones are told of."""
MOVE_S = 5.0
"""For changing to a folder: only a dead network mount takes longer."""


class PythonTool:
    """Runs Python code. The model reads what a notebook would show: prints, the last value, tracebacks.

    A failed sandbox raises `SandboxError`; a Python that the code itself brought down is told to the model.
    """

    name = "python"
    description = (
        "Run Python code in a persistent IPython session. Variables and imports stay between calls. "
        "Prints and the value of the last expression are returned. There is no input."
    )
    parameters: ClassVar[Json] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
    }

    def __init__(self, kernel: Kernel, *, folder: WorkingFolder | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES) -> None:
        self._kernel = kernel
        self._folder = folder or WorkingFolder()
        self._standing = ""
        self._max_output_bytes = max_output_bytes
        self.shows_images = False

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Runs the code; see `Kernel.run` for what the time limit does.

        Raises:
            SandboxError: the sandbox failed, not the code.
        """
        moved = await self._move(timeout_s)
        result = await self._kernel.run(
            str(arguments["code"]),
            timeout_s=timeout_s,
            max_output_bytes=self._max_output_bytes,
            max_images=MAX_IMAGES if self.shows_images else 0,
        )
        failpoint("sandbox_kernel")
        if moved is not None:
            is_fresh = result.fresh_kernel or moved.fresh_kernel or moved.state_lost
            result = replace(result, fresh_kernel=is_fresh, notices=moved.notices + result.notices)
        self._standing = "" if result.state_lost else result.cwd
        if result.cwd:
            self._folder.path = result.cwd
        return ToolResult(
            text=model_text(result, timeout_s),
            is_error=result.status != "ok",
            details={
                "status": result.status,
                "error": result.error_name,
                "state_lost": result.state_lost,
                "fresh_kernel": result.fresh_kernel,
                "cwd": result.cwd,
                "truncated_bytes": result.truncated_bytes,
                "took_s": round(result.took_s, 3),
                "notices": list(result.notices),
            },
            images=result.images,
        )

    async def _move(self, timeout_s: float) -> KernelResult | None:
        """Goes where the other tools stand, by a cell of its own; what that cell found, or None when it stands there."""
        there = self._folder.move_for(self._standing)
        if not there:
            return None
        return await self._kernel.run(GO.format(folder=there), timeout_s=min(timeout_s, MOVE_S))


def model_text(result: KernelResult, timeout_s: float) -> str:
    """What the model reads: the output, and in brackets what happened to its session."""
    parts = [
        FRESH if result.fresh_kernel else "",
        result.output.rstrip("\n"),
        INCOMPLETE if result.incomplete else "",
        f"[{result.truncated_bytes:,} bytes of output were left out.]" if result.truncated_bytes else "",
        notice_lines(result.notices),
        _fate(result, timeout_s),
    ]
    return "\n".join(filter(None, parts)) or NO_OUTPUT


def _fate(result: KernelResult, timeout_s: float) -> str:
    if result.status == "timeout" and not result.state_lost:
        return f"[Interrupted: it ran longer than {timeout_s:g} s. Variables are kept.]"
    if result.status == "timeout":
        return f"[Killed: it ran longer than {timeout_s:g} s and did not react to an interrupt. All variables are lost.]"
    if result.state_lost:
        return "[Python has ended. All variables are lost; the next call starts a new one.]"
    return ""
