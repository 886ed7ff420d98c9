"""The tool with which the model writes a thought down. Nothing comes of it but the place of the thought in the dialogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pipeline.messages import Json
from workers.tools.base import ToolResult


class ThinkTool:
    """Takes a thought and keeps nothing of it: it already stands in the call. Touches neither sandbox nor clock."""

    name = "think"
    description = (
        "Write down a thought: what you know so far, which causes or plans there are and which one to try, what a result means. "
        "It changes nothing and brings no new information."
    )
    parameters: ClassVar[Json] = {
        "type": "object",
        "properties": {"thought": {"type": "string", "description": "Your thought."}},
        "required": ["thought"],
    }

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Answers at once."""
        return ToolResult(text="Your thought was noted.")
