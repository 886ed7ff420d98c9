"""Tokenizers for tests of families: our small vocabulary with the tokens of a family added at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from workers.agent.renderers import ChatMLRenderer, Llama3Renderer, PackageRenderer, Renderer
from workers.llm import llama3
from workers.llm.tokenizer import Tokenizer, load
from workers.llm.tokenizer.tokenizer import OWN_FILE

LLAMA3 = (
    llama3.BEGIN,
    llama3.END_OF_TEXT,
    llama3.HEADER_OPEN,
    llama3.HEADER_CLOSE,
    llama3.END_OF_TURN,
    llama3.END_OF_MESSAGE,
    llama3.PYTHON,
)
PACKAGE_TOKENS: Mapping[str, tuple[str, ...]] = {
    "qwen3": (),
    "llama-3": LLAMA3,
    "glm-4.5": (
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    "nemotron-3": (),
    "kimi-k2": (
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_system|>",
        "<|im_middle|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    "deepseek-v3": (
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁outputs▁begin｜>",
        "<｜tool▁outputs▁end｜>",
        "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>",
    ),
    "minimax-m2": ("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"),
    "gemma4": (
        "<bos>",
        "<eos>",
        "<|turn>",
        "<turn|>",
        "<|channel>",
        "<channel|>",
        "<|think|>",
        "<|tool>",
        "<tool|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        "<|image>",
        "<|image|>",
        "<image|>",
        '<|"|>',
    ),
    "qwen3.5": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
}
"""Tokens beside those of our vocabulary that families of the package `renderers` need."""


def definition(*names: str) -> bytes:
    """Our tokenizer's file with added tokens."""
    parsed = json.loads(OWN_FILE.read_bytes())
    after = max(token["id"] for token in parsed["added_tokens"]) + 1
    for id_, name in enumerate(names, after):
        token = {"id": id_, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        parsed["added_tokens"].append(token)
    return json.dumps(parsed).encode()


@lru_cache(maxsize=8)
def tokenizer_with(*names: str) -> Tokenizer:
    """Our tokenizer with added tokens."""
    return Tokenizer(definition(*names)) if names else load()


@lru_cache(maxsize=32)
def renderer_of(family: str) -> Renderer:
    """A renderer by a short name: `chatml`, `llama3`, or a family of the package."""
    if family == "chatml":
        return ChatMLRenderer(load())
    if family == "llama3":
        return Llama3Renderer(tokenizer_with(*LLAMA3))
    return PackageRenderer(tokenizer_with(*PACKAGE_TOKENS[family]), family)
