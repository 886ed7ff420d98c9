"""The syntaxes in which models write tool calls; each is read by one small reader.

FORMATS          readers by name: `hermes`, `qwen3_coder`, `llama3_json`
Reader           what a reader is (`base.py`)
ToolCall, CallError, Item, Fault
"""

from collections.abc import Mapping

from workers.agent.call_formats.base import CallError, Fault, Item, Reader, ToolCall
from workers.agent.call_formats.hermes import HermesReader
from workers.agent.call_formats.llama_json import LlamaJsonReader
from workers.agent.call_formats.qwen_coder import QwenCoderReader

FORMATS: Mapping[str, type[Reader]] = {"hermes": HermesReader, "qwen3_coder": QwenCoderReader, "llama3_json": LlamaJsonReader}

__all__ = ["FORMATS", "CallError", "Fault", "Item", "Reader", "ToolCall"]
