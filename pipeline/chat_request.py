"""How a model's dialogues become tokens, checked before anything is sent: the template's family, the tokenizer, and what may differ.

Names are the workers' (`workers/agent/renderers`, `canonical_dialogues.py`); a test holds the lists together. What only a worker can
know, such as whether it has the tokenizer, it says when the job is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.messages import ChatSettings
from pipeline.prompts import PlainMap
from pipeline.request_model import Request

Family = Literal["chatml", "llama3", "renderers"]
Thinking = Literal["free", "open", "off"]
ToolFormat = Literal["", "hermes", "qwen3_coder", "llama3_json"]
Dialogue = Literal[
    "user",
    "system",
    "tools",
    "system and tools",
    "two user turns",
    "two user turns after a thought",
    "two tool answers",
    "two tool answers after a thought",
]
OPTIONS: Mapping[str, Mapping[str, type]] = {
    "chatml": {"default_system": str},
    "llama3": {"date_string": str, "tools_in_user_message": bool},
}
"""Options of the families that are written here."""
_chat = ChatSettings()


class ChatRequest(Request):
    """Template and tokenizer of a model; see `messages.ChatSettings`."""

    family: Family = "chatml"
    renderer: str = Field(default=_chat.renderer, max_length=64)
    """With the family `renderers`: that package's name of the family, such as `glm-4.5`."""
    tokenizer: str = Field(default=_chat.tokenizer, max_length=4096)
    """Path on the RUN workers of a `tokenizer.json`, or of a folder that holds one; empty = that of the scripted server."""
    thinking: Thinking = "free"
    keep_thinking: bool = _chat.keep_thinking
    tool_format: ToolFormat = ""
    """How the model writes calls; empty = as its family does."""
    options: PlainMap = Field(default_factory=dict)
    """Switches of the family's template."""
    template_differences: tuple[Dialogue, ...] = Field(default=(), strict=False)
    """Canonical dialogues on which the server's own template may write something else than the renderer."""
    images: bool = _chat.images
    """Whether the model sees images, of prompts and of tools. Its servers are vLLM with `--enable-scale-out`, and workers and trainer
    share a folder (`[blobs] dir`)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.family == "renderers") != bool(self.renderer):
            raise ValueError(
                "expected the name of a renderer with family 'renderers', and with no other: "
                f"got family {self.family!r} and renderer {self.renderer!r}"
            )
        if self.family == "llama3" and (self.thinking != "free" or not self.keep_thinking):
            raise ValueError("expected thinking 'free' and keep_thinking true with family 'llama3', which has no thoughts")
        if self.family == "renderers" and self.thinking == "open":
            raise ValueError(
                "expected thinking 'free' or 'off' with family 'renderers': whether a thought is opened is the template's to say"
            )
        if self.images and self.family != "chatml":
            raise ValueError(f"expected family 'chatml' with images, which no other writes here, got {self.family!r}")
        known = OPTIONS.get(self.family)
        for name, value in self.options.items():
            if known is not None and name not in known:
                raise ValueError(f"options: the family {self.family!r} has no option {name!r}; it has {', '.join(known)}")
            if known is not None and not isinstance(value, known[name]):
                raise ValueError(f"options: expected {known[name].__name__} for {name!r}, got {value!r}")
        return self

    def record(self) -> ChatSettings:
        """The message."""
        return ChatSettings(**{**self.model_dump(), "options": dict(self.options)})


__all__ = ["ChatRequest"]
