"""Calling tools in tests as the loop calls them: arguments by name, checked against the tool's schema first."""

from __future__ import annotations

from typing import Protocol

from workers.sandbox import Sandbox
from workers.tools import EditorTool, Tool, ToolResult, ToolSet
from workers.tools.editor_tool import MAX_VIEW_BYTES


class Call(Protocol):
    async def __call__(self, *, timeout_s: float = 30.0, **arguments: object) -> ToolResult: ...


class Edit(Protocol):
    async def __call__(
        self, command: str, path: str, *, as_is: bool = False, timeout_s: float = 30.0, **arguments: object
    ) -> ToolResult: ...


def calls(tool: Tool) -> Call:
    """The tool behind the check of its arguments."""
    tools = ToolSet([tool])

    async def call(*, timeout_s: float = 30.0, **arguments: object) -> ToolResult:
        assert tools.complaint(tool.name, arguments) == ""
        return await tool(arguments, timeout_s=timeout_s)

    return call


def editor(sandbox: Sandbox, *, max_view_bytes: int = MAX_VIEW_BYTES) -> Edit:
    """The editor; a relative path is made absolute, unless the call is `as_is`."""
    call = calls(EditorTool(sandbox, max_view_bytes=max_view_bytes))

    async def edit(command: str, path: str, *, as_is: bool = False, timeout_s: float = 30.0, **arguments: object) -> ToolResult:
        whole = path if as_is else f"{sandbox.workdir}/{path}"
        return await call(command=command, path=whole, timeout_s=timeout_s, **arguments)

    return edit
