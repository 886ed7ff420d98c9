"""The fixed texts of the ChatML family with thinking and tools, as Qwen models were trained on them.

They are part of a model's wire: one character else and the prompt is another one. The renderer
(`workers/agent/renderers/chatml.py`) and the scripted server read them from here.
"""

from __future__ import annotations

OPEN, CLOSE = "<|im_start|>", "<|im_end|>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
RESPONSE_OPEN, RESPONSE_CLOSE = "<tool_response>", "</tool_response>"
VISION_OPEN, IMAGE_PAD, VISION_CLOSE = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
"""Around an image, and in it: the middle one as often as the model's processor says."""

NO_THINKING = f"{THINK_OPEN}\n\n{THINK_CLOSE}\n\n"
"""Opens the answer of a model whose thinking is switched off."""

TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    f'{CALL_OPEN}{CALL_CLOSE} XML tags:\n{CALL_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CALL_CLOSE}'
)
