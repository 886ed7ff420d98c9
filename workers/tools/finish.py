"""The tool with which the model says that it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pipeline.messages import Json
from workers.tools.base import ToolResult


class FinishTool:
    """Ends the trajectory; its argument is the answer that is graded."""

    name = "finish"
    description = "End the task and hand in the answer. Nothing can be done afterwards."
    parameters: ClassVar[Json] = {
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "The final answer."}},
        "required": ["answer"],
    }

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Take the answer."""
        answer = str(arguments["answer"])
        return ToolResult(text="The answer was handed in.", ends=True, answer=answer)
