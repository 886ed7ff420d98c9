"""What a terminal shows, as plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.terminal_text import plain_text, valid_utf8


@pytest.mark.parametrize(
    ("shown", "plain"),
    [
        ("plain\n", "plain\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(B\x1b=x\x1b7", "x"),
        ("a\r\nb\r\r\nc", "a\nb\nc"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("50%\r", "50%"),
        ("a\rb\nc\rd", "b\nd"),
        ("-\b\\\b|\bdone", "done"),
        ("N\bNA\bAM\bME\bE", "NAME"),
        ("line\n\b\bx", "line\nx"),
        ("nul\0stays", "nul\0stays"),
    ],
)
def test_sequences_go_and_the_last_state_of_a_line_stays(shown: str, plain: str) -> None:
    assert plain_text(shown) == plain


@given(st.text(alphabet="a\n\r\b\x1b[]0;m\x07\\", max_size=200))
def test_any_noise_is_read_without_escapes_that_act(noise: str) -> None:
    read = plain_text(noise)

    assert "\r" not in read
    assert "\b" not in read
    assert "\x1b[0m" not in read


def test_a_megabyte_of_open_sequences_takes_no_time() -> None:
    assert plain_text("\x1b]" * 500_000) == ""
    assert plain_text("\x1b[" * 500_000).count("\x1b") == 0


@given(st.text())
def test_what_is_handed_on_can_be_encoded(text: str) -> None:
    read = valid_utf8(text + "\ud800\udfff")

    assert read.encode()
    assert read.endswith("\\ud800\\udfff")
