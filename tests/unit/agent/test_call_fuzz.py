"""Turns bent at random: never an error of ours, never a call that the text does not hold, never more than linear time."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.agent import CallError, ToolCall, parse_turn
from workers.agent.tool_calls import Format

Spoken = tuple[Format, str]
FORMATS: tuple[Format, ...] = ("hermes", "qwen3_coder", "llama3_json")
NAMES = ("bash", "write", "now")
TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "</tool_call>",
        "<tool_call>",
        "<think>",
        "</think>",
        '"}}',
        "\\",
        "'",
        "\n",
        "<|python_tag|>",
        ";{",
        '{"name": "now", "arguments": {}}',
    ]
)
ARGUMENTS = st.dictionaries(st.sampled_from(["cmd", "path", "content"]), TEXTS, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=now>", "</function>", "<parameter=cmd>", "</parameter>"),
        *("<|python_tag|>", "<|eom_id|>", '"', "'", "\\", "{", "}", "[", "]", ":", ",", ";", "\n", "\r\n", " ", "\ufeff", "1e999", "NaN"),
        *('{"name": "now", "arguments": {}}', "<tool_call>{'name': 'now'}</tool_call>", '"name": "bash"', "\\u12", "\ud800", "a"),
    ]
)


def written(format: Format, calls: list[tuple[str, dict[str, str]]], *, ascii_only: bool) -> str:  # noqa: A002  (the word of the domain)
    """A turn as a model that knows the syntax writes it."""
    if format == "qwen3_coder":
        return "\n".join(
            f"<tool_call>\n<function={name}>\n"
            + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
            + "</function>\n</tool_call>"
            for name, arguments in calls
        )
    if format == "llama3_json":
        return "<|python_tag|>" + ";".join(json.dumps({"name": n, "parameters": a}, ensure_ascii=ascii_only) for n, a in calls)
    bodies = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only) for name, arguments in calls]
    return "I look.\n" + "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


@st.composite
def turns(draw: st.DrawFn) -> Spoken:
    """A format and a turn in it."""
    format_ = draw(st.sampled_from(FORMATS))
    return format_, written(format_, draw(CALLS), ascii_only=draw(st.booleans()))


@st.composite
def bent_turns(draw: st.DrawFn) -> Spoken:
    """A turn with pieces put in, taken out, doubled and moved; sometimes in a syntax that is not the reader's."""
    format_, text = draw(turns())
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["in", "out", "twice", "moved", "thought"])):
            case "in":
                text = text[:start] + draw(PIECES) + text[start:]
            case "out":
                text = text[:start] + text[end:]
            case "twice":
                text = text[:end] + text[start:end] + text[end:]
            case "moved":
                place = draw(st.integers(0, len(text)))
                rest = text[:start] + text[end:]
                text = rest[:place] + text[start:end] + rest[place:]
            case _:
                text = f"{text[:start]}<think>{text[start:end]}</think>{text[end:]}"
    return draw(st.sampled_from([format_, *FORMATS])), text


def objects_in(text: str) -> list[object]:
    """Every JSON object that begins anywhere in a text, arguments given as text read as well."""
    reader = json.JSONDecoder(strict=False)
    found: list[object] = []
    for place in [place for place, sign in enumerate(text) if sign == "{"]:
        try:
            value, _ = reader.raw_decode(text, place)
        except ValueError:
            continue
        found.append(value)
        for key in ("arguments", "parameters"):
            if isinstance(value.get(key), str):
                found += objects_in(value[key])
    return found


def stands_in(call: ToolCall, format: Format, text: str) -> bool:  # noqa: A002
    """Whether the text holds the call: each value as it was written, under the name that was written."""
    text = text.replace("\ud800", "\ufffd")
    if format == "qwen3_coder":
        return f"<function={call.name}".replace(" ", "") in text.replace(" ", "") and all(
            key in text and value in text for key, value in call.arguments.items() if isinstance(value, str)
        )
    plain = json.loads(json.dumps(call.arguments))
    seen = [json.loads(json.dumps(one).replace("\\ud800", "\\ufffd")) for one in objects_in(text)]
    return any(one == plain for one in seen) or (plain == {} and call.name in text)


@given(bent_turns(), st.sampled_from(["stop", "length"]), st.sampled_from([True, False, None]))
def test_a_bent_turn_gives_only_calls_that_stand_in_it(spoken: Spoken, finish: str, in_thought: bool | None) -> None:
    format_, text = spoken

    turn = parse_turn(text, finish=finish, format=format_, in_thought=in_thought)

    assert all(isinstance(item, ToolCall | CallError) for item in turn.items)
    for call in turn.calls:
        assert stands_in(call, format_, text), (call, text)


@given(bent_turns(), st.sampled_from(["stop", "length"]))
@example(("hermes", "<tool_call>x\n<think><tool_call>{}</tool_call></think>"), "stop")
def test_nothing_in_a_thought_is_a_call_or_told(spoken: Spoken, finish: str) -> None:
    format_, text = spoken
    while "</think>" in text:  # taking one out may make another of what was around it
        text = text.replace("</think>", "")

    opened_by_the_model = parse_turn(f"<think>{text}</think>4", finish=finish, format=format_)
    opened_in_the_prompt = parse_turn(f"{text}</think>4", finish=finish, format=format_, in_thought=True)
    never_closed = parse_turn(f"<think>{text}", finish=finish, format=format_)

    assert (opened_by_the_model.items, opened_in_the_prompt.items, never_closed.items) == ((), (), ())
    assert opened_by_the_model.content == opened_in_the_prompt.content == "4"


@given(turns(), st.data())
def test_a_turn_cut_anywhere_gives_the_first_of_its_calls_and_says_that_one_was_cut(spoken: Spoken, data: st.DataObject) -> None:
    format_, text = spoken
    whole = parse_turn(text, format=format_, in_thought=False)
    length = data.draw(st.integers(0, len(text)))

    cut = parse_turn(text[:length], finish="length", format=format_, in_thought=False)

    assert cut.calls == whole.calls[: len(cut.calls)]
    if len(cut.calls) < len(whole.calls) and not whole.errors and text[:length].strip().endswith(("{", ":", '"cmd"', ",")):
        assert cut.errors or cut.in_thought, text[:length]


@given(CALLS, st.booleans())
def test_what_a_model_writes_well_is_read_as_it_was_meant(calls: list[tuple[str, dict[str, str]]], ascii_only: bool) -> None:
    for format_ in ("hermes", "llama3_json"):
        turn = parse_turn(written(format_, calls, ascii_only=ascii_only), format=format_)

        assert [(call.name, call.arguments) for call in turn.calls] == calls
        assert turn.errors == ()


UNENDED = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "<think></think>",
        "<think></think>x",
        '<tool_call>{"a": "',
        '<tool_call>"',
        "<tool_call>{",
    ),
    *("<tool_call>['", '<tool_call>{"a":1} ', '<tool_call>{"name": "a", "arguments": {}}</tool_call>', '"</tool_call>', "\\", '{"a": 1, '),
    *("<function=", "<function=a>", "<function=a><parameter=b>\n", "<parameter=b>\n</parameter>", "</parameter>   ", "\n<parameter=a>"),
    *(
        "<tool_call><function=a><parameter=a></tool_call>",
        '<|python_tag|>{"name": "a"}',
        '{"name": "a", "parameters": {}};',
        "<|python_tag|>",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_megabyte_of_anything_takes_linear_time(format: Format) -> None:  # noqa: A002
    """A reader that looks through all that follows for the end of each call holds the event loop for the square of the text."""
    for before in ("", '<tool_call>{"a": "', "<tool_call><function=a>", "<|python_tag|>"):
        for piece in UNENDED:
            text = before + piece * (1_000_000 // len(piece))
            started = time.process_time()

            parse_turn(text, finish="length", format=format)

            assert time.process_time() - started < 1.0, (before, piece)
