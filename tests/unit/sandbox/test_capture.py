"""The bounded buffer: what is kept and what is counted always add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.capture import HeadTail


@given(st.lists(st.binary(max_size=50)), st.integers(min_value=2, max_value=64))
def test_it_keeps_the_first_and_the_last_half_of_any_stream(chunks: list[bytes], max_bytes: int) -> None:
    kept = HeadTail(max_bytes)
    for chunk in chunks:
        kept.feed(chunk)

    whole, half = b"".join(chunks), max_bytes // 2
    head, tail = kept.parts()
    assert head == whole[:half]
    assert tail == whole[half:][-half:]
    assert kept.total_bytes == len(whole)
    assert kept.dropped_bytes == len(whole) - len(head) - len(tail)
    if len(whole) <= 2 * half:
        assert kept.content() == whole


@given(st.text(alphabet="a\u00e9\u20ac\U0001f600", max_size=60), st.integers(min_value=2, max_value=40))
def test_a_cut_never_shows_half_a_character(text: str, max_bytes: int) -> None:
    kept = HeadTail(max_bytes)
    kept.feed(text.encode())

    assert "\ufffd" not in kept.text()
    if not kept.dropped_bytes:
        assert kept.text() == text


@given(st.binary(max_size=40), st.integers(min_value=2, max_value=20))
def test_any_bytes_become_valid_text(data: bytes, max_bytes: int) -> None:
    kept = HeadTail(max_bytes)
    kept.feed(data)

    assert kept.text().encode().decode() == kept.text()


def test_the_gap_says_how_much_is_missing() -> None:
    kept = HeadTail(4)
    kept.feed(b"ab" + b"x" * 10 + b"yz")

    assert kept.content() == b"ab\n[... 10 bytes left out ...]\nyz"


def test_memory_stays_bounded() -> None:
    kept = HeadTail(1000)
    for _ in range(10_000):
        kept.feed(b"z" * 777)

    assert len(kept.content()) < 1100
    assert kept.total_bytes == 7_770_000
