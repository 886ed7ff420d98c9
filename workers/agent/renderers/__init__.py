"""Dialogues as token ids, append-only: one renderer a model family.

Renderer, Prompt, Thinking, THINKING_DROPPED     what the agent loop asks of any (`base.py`)
ChatMLRenderer                                   Qwen's family (`chatml.py`)
Llama3Renderer                                   Llama 3.1 and later (`llama3.py`)
PackageRenderer                                  all families of the package `renderers` (`package.py`, `package_tokenizer.py`)
renderer_for, RendererUnavailable                the one that a job's settings ask for (`choose.py`, `errors.py`)
first_difference, tool_schema

`written.py` holds what the templates that are written here have in common, `parts.py` renderings in pieces, `thoughts.py` how thoughts are
found in ids. Why it is so: `docs/adr/0014-renderers.md`.
"""

from workers.agent.renderers.base import THINKING_DROPPED, Prompt, Renderer, Thinking, first_difference, tool_schema
from workers.agent.renderers.chatml import ChatMLRenderer
from workers.agent.renderers.choose import renderer_for
from workers.agent.renderers.errors import RendererUnavailable
from workers.agent.renderers.llama3 import Llama3Renderer
from workers.agent.renderers.package import PackageRenderer

__all__ = [
    "THINKING_DROPPED",
    "ChatMLRenderer",
    "Llama3Renderer",
    "PackageRenderer",
    "Prompt",
    "Renderer",
    "RendererUnavailable",
    "Thinking",
    "first_difference",
    "renderer_for",
    "tool_schema",
]
