"""Make `expected.json`: what public chat templates write for dialogues of our own, rendered by transformers itself.

    pip install transformers jinja2 && pip download --no-deps trl==1.16.0 && unzip trl-*.whl 'trl/chat_templates/*'
    python tests/unit/agent/chat_templates/make.py trl/chat_templates

The trl package ships copies of the templates of the models' repositories; they are read from there and stay there. What is kept here is the
text of each dialogue, beside the dialogue. Made with transformers 5.19.0 and jinja2 3.1.6.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find \u201cthings\u201d & more <here>.",
        "parameters": {"type": "object", "properties": {"for": {"type": "string"}, "n": {"type": "integer"}}, "required": ["for"]},
    },
}
SECOND = {"type": "function", "function": {"name": "stop", "description": "", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = {"role": "system", "content": "  Answer in one word.\n"}
USER = {"role": "user", "content": "Wie hei\u00dft der gr\u00f6\u00dfte See? \U0001f30a\n\n  "}
AGAIN = {"role": "user", "content": "\nAnd the second?"}
ARGUMENTS = {"for": 'lake "big"', "n": 2}


def call(*, name: str = "search") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "name": "search", "content": text}


HERMES = '<tool_call>\n{"name": "search", "arguments": {"for": "lake \\"big\\"", "n": 2}}\n</tool_call>'
LLAMA = '{"name": "search", "parameters": {"for": "lake \\"big\\"", "n": 2}}'
THOUGHT = "<think>\nI search.\n</think>\n\n"
ANSWERS = [tool('{"found": ["B\u00e4r"]}\n'), tool(" no <b> & 'c' ")]


def dialogues(family: str) -> list[dict[str, Any]]:
    """Dialogues: the first messages, then turns: as the template takes them, as the model writes them, and what is answered."""
    told: list[dict[str, Any]] = [
        {"name": "user", "first": [USER]},
        {"name": "system", "first": [SYSTEM, USER]},
        {"name": "tools", "first": [USER], "tools": [TOOL, SECOND]},
        {"name": "system and tools", "first": [SYSTEM, USER], "tools": [TOOL]},
        {
            "name": "two user turns",
            "first": [SYSTEM, USER],
            "turns": [{"message": {"role": "assistant", "content": "Baikal"}, "spoken": "Baikal", "replies": [AGAIN]}],
        },
        {
            "name": "a system message between",
            "first": [USER],
            "turns": [{"message": {"role": "assistant", "content": "B"}, "spoken": "B", "replies": [SYSTEM, AGAIN]}],
        },
    ]
    if family == "llama3_1":
        turn = {"message": {"role": "assistant", "content": "", "tool_calls": [call()]}, "spoken": LLAMA}
        told += [
            {"name": "tools in the system message", "first": [SYSTEM, USER], "tools": [TOOL], "kwargs": {"tools_in_user_message": False}},
            {"name": "another date", "first": [USER], "kwargs": {"date_string": "01 Jan 2030"}},
            {"name": "tool answers", "first": [USER], "tools": [TOOL], "turns": [turn | {"replies": ANSWERS}]},
            {
                "name": "tool loop",
                "first": [USER],
                "tools": [TOOL],
                "turns": [turn | {"replies": ANSWERS[:1]}, turn | {"replies": ANSWERS[1:]}],
            },
        ]
        return told
    turn = {"message": {"role": "assistant", "content": "I search.", "tool_calls": [call()]}, "spoken": f"I search.\n{HERMES}"}
    told.append({"name": "tool answers", "first": [USER], "tools": [TOOL], "turns": [turn | {"replies": ANSWERS}]})
    if family == "qwen3":
        think = {"role": "assistant", "content": "", "reasoning_content": "I search.", "tool_calls": [call(), call()]}
        thinking = {"message": think, "spoken": f"{THOUGHT}{HERMES}\n{HERMES}"}
        said = {"role": "assistant", "content": f"{THOUGHT}Baikal"}
        told += [
            {"name": "no thinking", "first": [SYSTEM, USER], "tools": [TOOL], "kwargs": {"enable_thinking": False}},
            {
                "name": "thoughts in a tool loop",
                "first": [SYSTEM, USER],
                "tools": [TOOL],
                "turns": [thinking | {"replies": ANSWERS}, thinking | {"replies": ANSWERS[:1]}],
            },
            {
                "name": "thoughts before a user turn",
                "first": [USER],
                "turns": [{"message": said, "spoken": f"{THOUGHT}Baikal", "replies": [AGAIN]}],
            },
            {
                "name": "thoughts in a loop before a user turn",
                "first": [USER],
                "tools": [TOOL],
                "turns": [
                    thinking | {"replies": ANSWERS},
                    {"message": said, "spoken": f"{THOUGHT}Baikal", "replies": [AGAIN]},
                ],
            },
        ]
    return told


def main() -> None:
    render_jinja_template = importlib.import_module("transformers.utils.chat_template_utils").render_jinja_template
    folder = Path(sys.argv[1])
    expected = {}
    for family in ("qwen3", "qwen2_5", "llama3_1"):
        template = (folder / f"{family}.jinja").read_text(encoding="utf-8")
        cases = dialogues(family)
        for case in cases:
            messages = list(case["first"])
            for turn in case.get("turns", ()):
                messages += [turn["message"], *turn["replies"]]
            rendered, _ = render_jinja_template(
                [messages],
                tools=case.get("tools"),
                chat_template=template,
                add_generation_prompt=True,
                bos_token="<|begin_of_text|>",
                **case.get("kwargs", {}),
            )
            case["text"] = rendered[0]
        expected[family] = cases
    target = Path(__file__).with_name("expected.json")
    target.write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
