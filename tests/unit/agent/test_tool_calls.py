"""A call is run as it stands or told to be wrong; none is guessed, none is dropped without a word."""

from __future__ import annotations

import json
import time

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.agent import CallError, ToolCall, parse_turn
from workers.agent.tool_calls import MOST_ITEMS, Format

TOOLS = {
    "bash": {"type": "object", "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}, "flags": {"type": "array"}}},
    "now": {"type": "object", "properties": {}},
    "write": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}, "required": ["path"]},
}


def hermes(*bodies: str) -> str:
    return "".join(f"<tool_call>\n{body}\n</tool_call>\n" for body in bodies)


def calls_in(text: str, finish: str = "stop", format: Format = "hermes", **more: bool) -> list[object]:  # noqa: A002
    """What a turn holds, faults by their kind."""
    turn = parse_turn(text, finish=finish, tools=TOOLS, format=format, **more)
    return [(item.name, item.arguments) if isinstance(item, ToolCall) else item.fault for item in turn.items]


LS = '{"name": "bash", "arguments": {"cmd": "ls"}}'
GOOD = ("bash", {"cmd": "ls"})

HERMES = {
    "plain": (hermes(LS), [GOOD]),
    "twice the same is two": (hermes(LS, LS), [GOOD, GOOD]),
    "two objects in one block": (hermes(LS + "\n" + LS), [GOOD, GOOD]),
    "a list in one block": (hermes(f"[{LS}, {LS}]"), [GOOD, GOOD]),
    "closing tag in a string": (
        hermes('{"name": "bash", "arguments": {"cmd": "echo </tool_call> <tool_call>"}}'),
        [("bash", {"cmd": "echo </tool_call> <tool_call>"})],
    ),
    "thinking tags in a string": (
        hermes('{"name": "bash", "arguments": {"cmd": "echo <think></think>"}}'),
        [("bash", {"cmd": "echo <think></think>"})],
    ),
    "line break in a string": (hermes('{"name": "bash", "arguments": {"cmd": "a\nb\tc"}}'), [("bash", {"cmd": "a\nb\tc"})]),
    "arguments as text": (hermes('{"name": "bash", "arguments": "{\\"cmd\\": \\"ls\\"}"}'), [GOOD]),
    "parameters instead": (hermes('{"name": "bash", "parameters": {"cmd": "ls"}}'), [GOOD]),
    "function wrapper": (hermes('{"type": "function", "function": {"name": "bash", "arguments": {"cmd": "ls"}}}'), [GOOD]),
    "no arguments where none are known": (hermes('{"name": "now"}'), [("now", {})]),
    "no arguments where some are": (hermes('{"name": "bash"}'), ["bad_arguments"]),
    "null arguments where some are": (hermes('{"name": "bash", "arguments": null}'), ["bad_arguments"]),
    "arguments of another kind": (hermes('{"name": "bash", "arguments": ["ls"]}'), ["bad_arguments"]),
    "arguments as broken text": (hermes('{"name": "bash", "arguments": "{cmd: ls}"}'), ["bad_arguments"]),
    "no name": (hermes('{"arguments": {"cmd": "ls"}}'), ["malformed"]),
    "a number": (hermes("17"), ["malformed"]),
    "unknown tool": (hermes('{"name": "rm", "arguments": {}}'), ["unknown_tool"]),
    "comma too many": (hermes('{"name": "bash", "arguments": {"cmd": "ls",}}'), ["malformed"]),
    "python notation": (hermes("{'name': 'bash', 'arguments': {'cmd': 'ls'}}"), ["malformed"]),
    "brace missing": (hermes(LS[:-1]), ["malformed"]),
    "brace too many": (hermes(LS + "}"), ["malformed"]),
    "good one, then a bad one": (hermes(LS, '{"name": "bash", "arguments": }'), [GOOD, "malformed"]),
    "bad one, then a good one": (hermes('{"name": "bash", "arguments": }', LS), ["malformed", GOOD]),
    "tag never closed, then a good one": (f'<tool_call>\n{{"name": "bash"\n{hermes(LS)}', ["malformed", GOOD]),
    "closing tag missing": (f"<tool_call>\n{LS}", [GOOD]),
    "closing tag missing before the next": (f"<tool_call>\n{LS}\n{hermes(LS)}", [GOOD, GOOD]),
    "opening tag missing": (f"{LS}\n</tool_call>", ["malformed"]),
    "empty": ("<tool_call>\n\n</tool_call>", ["malformed"]),
    "windows line ends": ("  <tool_call> \r\n " + LS + "\r\n </tool_call>  ", [GOOD]),
    "lone surrogate": (hermes('{"name": "bash", "arguments": {"cmd": "a\\ud800b"}}'), [("bash", {"cmd": "a\ufffdb"})]),
    "surrogate pair": (hermes('{"name": "bash", "arguments": {"cmd": "\\ud83e\\uddbf"}}'), [("bash", {"cmd": "🦿"})]),
    "not a number": (hermes('{"name": "bash", "arguments": {"n": NaN}}'), ["malformed"]),
    "beyond finite": (hermes('{"name": "bash", "arguments": {"n": 1e999}}'), ["malformed"]),
    "beyond 64 bits": (hermes('{"name": "bash", "arguments": {"n": ' + "9" * 30 + "}}"), ["bad_arguments"]),
    "more digits than Python reads": (hermes('{"name": "bash", "arguments": {"n": ' + "9" * 9000 + "}}"), ["malformed"]),
    "too deep": (hermes('{"name": "bash", "arguments": {"cmd": ' + "[" * 200 + "]" * 200 + "}}"), ["bad_arguments"]),
    "deeper than Python reads": (hermes('{"name": "bash", "arguments": {"cmd": ' + "[" * 200_000 + "}}"), ["malformed"]),
    "inside a thought": (f"<think>\nmaybe {hermes(LS)}</think>\nThe answer is 4.", []),
    "after a thought": (f"<think>\nmaybe {hermes(LS)}</think>\n{hermes(LS)}", [GOOD]),
    "between two thoughts": (f"<think>a</think>{hermes(LS)}<think>{hermes(LS)}</think>", [GOOD]),
    "in a thought that never ends": (f"<think>\n{hermes(LS)}", []),
    "the thought was opened in the prompt": (f"I try {hermes(LS)} later.\n</think>\n{hermes(LS)}", [GOOD]),
    "nothing at all": ("", []),
    "a key twice": (hermes('{"name": "bash", "arguments": {"cmd": "ls", "cmd": "rm"}}'), ["malformed"]),
    "a name twice": (hermes('{"name": "now", "name": "bash", "arguments": {}}'), ["malformed"]),
    "keys that become one": (hermes('{"name": "bash", "arguments": {"\\ud800": 1, "\\ud801": 2}}'), ["bad_arguments"]),
    "lists in a list": (hermes(f"[[{LS}]]"), ["malformed"]),
    "an empty list": (hermes("[]"), ["malformed"]),
    "an empty name": (hermes('{"name": " ", "arguments": {}}'), ["malformed"]),
    "a mark of byte order": (hermes("\ufeff" + LS), ["malformed"]),
    "escapes in keys": (
        hermes('{"n\\u0061me": "bash", "arguments": {"cm\\u0064": "\\u003c/tool_call>ls"}}'),
        [("bash", {"cmd": "</tool_call>ls"})],
    ),
    "a call in a string of a broken call": (hermes(f"{{'name': 'write', 'arguments': {{'content': '{hermes(LS)}'}}}}"), ["malformed"]),
    "two calls in a string of a broken call": (hermes(f"{{'name': 'write', 'content': '{hermes(LS, LS)}'}}"), ["malformed"]),
    "a call in a string that never ends": (f'<tool_call>{{"name": "write, "content": "<tool_call>{LS}', ["malformed"]),
    "a call between the tags of a broken one": (hermes("first " + hermes(LS)), ["malformed"]),
    "words after the object, then a call": (f"<tool_call>{LS} so.\n{hermes(LS)}", ["malformed", GOOD]),
    "a broken call left open, then a thought": (f"<tool_call>oops\n<think>or {hermes(LS)}</think>4", ["malformed"]),
    "a broken call around a thought": (f"<tool_call>oops\n<think>or {hermes(LS)}</think>\n</tool_call>", ["malformed"]),
    "the thought of the prompt speaks of an open tag": (f"I write <tool_call> first.\n</think>\n{hermes(LS)}", [GOOD]),
    "the thought of the prompt has a string that never ends": (f'<tool_call>{{"name": "b </think>{hermes(LS)}', [GOOD]),
    "the thought of the prompt ends in a call": (f"I try <tool_call>{LS} no.\n</think>The answer is 4.", []),
}


def test_lists_nested_beyond_what_python_walks_are_told() -> None:
    """Where the JSON reader's own bound is higher than Python's, taking such a value apart was an error of ours."""
    for depth in (50, 900, 960, 980, 990, 5000):
        assert calls_in(hermes("[" * depth + LS + "]" * depth)) == ["malformed"], depth


def test_what_a_fault_repeats_of_the_model_is_short() -> None:
    (fault,) = parse_turn(hermes(json.dumps({"name": "x" * 50_000, "arguments": {}})), tools=TOOLS).errors

    assert fault.fault == "unknown_tool"
    assert len(fault.message) < 300


@pytest.mark.parametrize(("text", "expected"), HERMES.values(), ids=list(HERMES))
def test_hermes(text: str, expected: list[object]) -> None:
    assert calls_in(text) == expected


@pytest.mark.parametrize("length", range(1, len(hermes(LS).strip())))
def test_a_call_cut_off_anywhere_is_never_run(length: int) -> None:
    """Every prefix of a turn with one call: once the tag has begun there is a fault, and never a call."""
    text = hermes(LS).strip()[:length]

    assert calls_in(text, "length") == (["truncated"] if text.startswith("<tool_call>") else [])


def test_what_is_cut_off_after_a_whole_call_leaves_that_call() -> None:
    assert calls_in(hermes(LS) + '<tool_call>\n{"name": "bash", "argum', "length") == [GOOD, "truncated"]


def test_a_cut_inside_a_string_that_holds_a_closing_tag_is_a_cut() -> None:
    text = '<tool_call>\n{"name": "write", "arguments": {"path": "a", "content": "x </tool_call> y'

    assert calls_in(text, "length") == ["truncated"]


def test_known_to_be_outside_a_thought_a_closing_tag_is_text() -> None:
    turn = parse_turn(f"{hermes(LS)}so </think> it is", tools=TOOLS, in_thought=False)

    assert [type(item) for item in turn.items] == [ToolCall]
    assert turn.content.endswith("so </think> it is")


def test_content_thought_and_the_state_at_the_end() -> None:
    turn = parse_turn(f"<think>\nhm\n</think>\n\nI look.\n{hermes(LS)}Wait.", tools=TOOLS)
    open_end = parse_turn("<think>\nhm", finish="length", tools=TOOLS)

    assert (turn.thought, turn.content, turn.in_thought) == ("hm", "I look.\n\nWait.", False)
    assert (open_end.thought, open_end.content, open_end.in_thought) == ("hm", "", True)


def test_a_fault_tells_the_model_what_to_do() -> None:
    (fault,) = parse_turn(hermes('{"name": "rm", "arguments": {}}'), tools=TOOLS).errors
    (broken,) = parse_turn(hermes("{'name'"), tools=TOOLS).errors

    assert "bash, now, write" in fault.message
    assert "JSON" in broken.message


def coder(name: str, **parameters: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


CODER = {
    "plain": (coder("bash", cmd="ls"), [GOOD]),
    "no parameters": (coder("now"), [("now", {})]),
    "numbers and lists by the schema": (coder("bash", n="5", flags='["-l"]'), [("bash", {"n": 5, "flags": ["-l"]})]),
    "words where a number is due": (coder("bash", n="five"), [("bash", {"n": "five"})]),
    "a number where text is due": (coder("bash", cmd="5"), [("bash", {"cmd": "5"})]),
    "signs of XML": (
        coder("bash", cmd="[ 1 -lt 2 ] && cat <f >g; echo '&amp;'"),
        [("bash", {"cmd": "[ 1 -lt 2 ] && cat <f >g; echo '&amp;'"})],
    ),
    "lines keep their blanks": (coder("bash", cmd="if x:\n    y\n"), [("bash", {"cmd": "if x:\n    y\n"})]),
    "a closing tag inside": (coder("bash", cmd="echo </parameter> x"), [("bash", {"cmd": "echo </parameter> x"})]),
    "two functions in a block": (
        "<tool_call>\n<function=now>\n</function>\n<function=bash>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>",
        [("now", {}), GOOD],
    ),
    "no tags around": ("<function=bash>\n<parameter=cmd>\nls\n</parameter>\n</function>", [GOOD]),
    "a value never closed": (
        "<tool_call>\n<function=write>\n<parameter=path>\na\n<parameter=content>\nx\n</parameter>\n</function>\n</tool_call>",
        ["malformed"],
    ),
    "a function never closed": ("<tool_call>\n<function=bash>\n<parameter=cmd>\nls\n</parameter>\n</tool_call>", ["malformed"]),
    "no function": ("<tool_call>\nls\n</tool_call>", ["malformed"]),
    "empty": ("<tool_call></tool_call>", ["malformed"]),
    "unknown tool": (coder("rm", path="/"), ["unknown_tool"]),
    "ends of a value in its middle": (
        coder("bash", cmd="echo </parameter> </function>\n</parameter> x"),
        [("bash", {"cmd": "echo </parameter> </function>\n</parameter> x"})],
    ),
    "a value that ends on its last line, then another": (
        "<function=bash>\n<parameter=cmd>\nls</parameter>\n<parameter=n>\n5\n</parameter>\n</function>",
        [("bash", {"cmd": "ls", "n": 5})],
    ),
    "words behind the function in its block": ("<tool_call>\n<function=now>\n</function>\nplease\n</tool_call>", ["malformed"]),
    "windows line ends": ("<tool_call>\r\n<function=bash>\r\n<parameter=cmd>\r\nls\r\n</parameter>\r\n</function>\r\n</tool_call>", [GOOD]),
    "a value on the line of its tags": ("<function=bash><parameter=cmd>ls</parameter></function>", [GOOD]),
    "an empty value": (coder("bash", cmd=""), [("bash", {"cmd": ""})]),
    "a parameter twice": (
        "<function=bash>\n<parameter=cmd>\nls\n</parameter>\n<parameter=cmd>\nrm\n</parameter>\n</function>",
        ["bad_arguments"],
    ),
    "a parameter without a name": ("<function=bash>\n<parameter=>\nls\n</parameter>\n</function>", ["bad_arguments"]),
    "a parameter right after an open one": (
        "<function=bash>\n<parameter=cmd>\n<parameter=n>\n5\n</parameter>\n</function>",
        ["malformed"],
    ),
    "two calls in a value": (
        coder("write", path="a", content=coder("now") + coder("now")),
        [("write", {"path": "a", "content": coder("now") + coder("now")})],
    ),
    "calls with parameters in a value": (coder("write", content=coder("bash", cmd="rm") + coder("bash", cmd="rm")), ["malformed"]),
    "a call in a value that has no end": (f"<tool_call>\n<function=write>\n<parameter=content>\n{coder('now')}", ["malformed"]),
    "words where a parameter is due, then a call": (f"<tool_call>\n<function=bash>\nls\n{coder('now')}", ["malformed", ("now", {})]),
    "a name without an end": (f"<function=bash\n{coder('now')}", ["malformed", ("now", {})]),
    "JSON between the tags": (hermes(LS), ["malformed"]),
    "inside a thought": (
        "<think>\n<function=bash>\n<parameter=cmd>\nrm\n</parameter>\n</function>\n</think>\n" + coder("now"),
        [("now", {})],
    ),
}


@pytest.mark.parametrize(("text", "expected"), CODER.values(), ids=list(CODER))
def test_qwen3_coder(text: str, expected: list[object]) -> None:
    assert calls_in(text, format="qwen3_coder") == expected


def test_a_coder_call_cut_off_before_its_function_ends_is_never_run() -> None:
    text = coder("bash", cmd="rm -rf out/")
    for length in range(len("<tool_call>"), text.index("</function>") + len("</function>") - 1):
        assert calls_in(text[:length], "length", format="qwen3_coder") == ["truncated"], text[:length]


def test_a_coder_value_is_text_where_the_schema_allows_text() -> None:
    tools = {"put": {"properties": {"any": {"type": ["string", "null"]}, "few": {"type": ["integer", "null"]}, "odd": {"type": "date"}}}}

    (call,) = parse_turn(coder("put", any="5", few="None", odd="7"), tools=tools, format="qwen3_coder").calls

    assert call.arguments == {"any": "5", "few": None, "odd": "7"}


LLAMA = {
    "two with a semicolon": (
        '<|python_tag|>{"name": "bash", "parameters": {"cmd": "ls; pwd"}};{"name": "now", "parameters": {}}',
        [("bash", {"cmd": "ls; pwd"}), ("now", {})],
    ),
    "ended by a tag": ('<|python_start|>{"name": "bash", "parameters": {"cmd": "ls"}}<|python_end|>', [GOOD]),
    "without a tag": ('{"name": "bash", "parameters": {"cmd": "ls"}}', [GOOD]),
    "an answer that is JSON": ('{"answer": 4}', []),
    "an answer with a name": ('{"name": "Ada", "born": 1815}', []),
    "without a tag, no tool of the name": ('{"name": "rm", "parameters": {}}', ["unknown_tool"]),
    "without a tag or parameters": ('{"name": "now"}', [("now", {})]),
    "without a tag, broken": ('{"name": "bash", "parameters": {"cmd": ls}}', ["malformed"]),
    "without a tag, after a thought": ('<think>hm</think>\n{"name": "now", "parameters": {}}', [("now", {})]),
    "without a tag, after words": ('So: {"name": "now", "parameters": {}}', []),
    "the name as the function": ('{"type": "function", "function": "now", "parameters": {}}', [("now", {})]),
    "Python after the tag": ("<|python_tag|>print(4)", ["malformed"]),
    "a tag in a string": (
        '<|python_tag|>{"name": "bash", "parameters": {"cmd": "<|python_tag|>;<|eom_id|>"}}<|eom_id|>',
        [("bash", {"cmd": "<|python_tag|>;<|eom_id|>"})],
    ),
    "broken": ('<|python_tag|>{"name": "bash", }', ["malformed"]),
    "prose": ("The answer is {4}.", []),
}


@pytest.mark.parametrize(("text", "expected"), LLAMA.values(), ids=list(LLAMA))
def test_llama3_json(text: str, expected: list[object]) -> None:
    assert calls_in(text, format="llama3_json") == expected


@pytest.mark.parametrize("cut", ["", '{"na', '{"name": "bash", "parameters": {'])
def test_a_llama_call_that_was_to_be_followed_by_another_says_that_it_was_cut(cut: str) -> None:
    assert calls_in('<|python_tag|>{"name": "now", "parameters": {}}; ' + cut, "length", format="llama3_json") == [("now", {}), "truncated"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.booleans())
def test_a_call_is_read_as_it_was_written_or_told_and_can_always_be_packed(arguments: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps({"name": "any", "arguments": arguments}, ensure_ascii=ascii_only)

    (item,) = parse_turn(hermes(body)).items

    if isinstance(item, ToolCall):
        assert msgpack.unpackb(msgpack.packb(item.arguments), strict_map_key=False) == arguments
    else:
        assert item.fault == "bad_arguments"


@given(
    st.lists(
        st.one_of(
            st.text(max_size=6),
            st.sampled_from(
                ["<think>", "</think>", "<tool_call>", "</tool_call>", LS, '{"name"', "}", '"', "<function=bash>", "</function>", "\n"]
            ),
        ),
        max_size=12,
    ).map("".join),
    st.sampled_from(["stop", "length", "abort"]),
    st.sampled_from(["hermes", "qwen3_coder", "llama3_json"]),
    st.sampled_from([True, False, None]),
)
def test_no_text_breaks_the_reader(text: str, finish: str, format: Format, in_thought: bool | None) -> None:  # noqa: A002
    turn = parse_turn(text, finish=finish, tools=TOOLS, format=format, in_thought=in_thought)

    assert all(isinstance(item, ToolCall | CallError) for item in turn.items)
    assert all(item.name in TOOLS for item in turn.calls)


def test_a_model_stuck_on_a_tag_costs_a_moment_and_is_told() -> None:
    """Each unended call was looked for through all that followed: 550 kB of opening tags held the worker's event loop for 46 s."""
    started = time.process_time()

    turn = parse_turn("<tool_call>" * 100_000)

    assert time.process_time() - started < 1
    assert len(turn.items) == MOST_ITEMS + 1
    assert "the rest was not read" in turn.errors[-1].message
