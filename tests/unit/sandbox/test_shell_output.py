"""Fences: the output is what stands between them, however the terminal cuts what it shows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.capture import HeadTail
from workers.sandbox.shell_output import FencedOutput

START, END = b"\x01\x0242s\x03", b"\x01\x0242e\x03"
PIECES = st.lists(
    st.sampled_from([b"text", b"\x01", b"\x02", b"42", b"s\x03", b"\x01\x0241s\x03", b"\x01\x0241e\x03", b"$ ", b"\n"]), max_size=12
)


def fed(chunks: list[bytes]) -> FencedOutput:
    output = FencedOutput("42", 10_000, HeadTail(10_000))
    for chunk in chunks:
        output.feed(chunk)
    return output


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


@given(PIECES, PIECES, PIECES, st.lists(st.integers(min_value=0, max_value=1000), max_size=30))
def test_before_between_and_after_are_told_apart_at_any_cut(
    before: list[bytes], inside: list[bytes], after: list[bytes], places: list[int]
) -> None:
    parts = b"".join(before), b"".join(inside), b"".join(after)

    output = fed(cut(parts[0] + START + parts[1] + END + parts[2], places))

    assert output.is_complete
    assert output.late.content() == parts[0]
    assert output.take().content() == parts[1]
    assert output.after.content() == parts[2]


@given(PIECES, st.lists(st.integers(min_value=0, max_value=1000), max_size=10))
def test_nothing_is_lost_when_the_end_never_comes(inside: list[bytes], places: list[int]) -> None:
    data = b"".join(inside) + b"\x01\x02"

    output = fed(cut(START + data, places))

    assert not output.is_complete
    assert output.take().content() == data


def test_a_terminal_without_fences_still_shows_something() -> None:
    output = fed([b"taken ", b"over\x01"])

    assert output.take().content() == b"taken over\x01"


def test_each_take_gives_what_came_since_the_last() -> None:
    output = fed([START + b"one"])
    first = output.take().content()
    output.feed(b"two" + END)

    assert (first, output.take().content()) == (b"one", b"two")
