"""A command as one word of a line: bash reads from it what was put in, and a terminal can do nothing to it."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.shell_session import MAX_WORD_BYTES, WORDLIKE, as_word

TEXTS = st.lists(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.sampled_from("\n\t'\\$!`"), max_size=80))


@given(TEXTS)
def test_bash_reads_the_very_text(texts: list[str]) -> None:
    words = [as_word(text.encode()) for text in texts]

    line = " ".join(["printf '%s\\0' begin", *(word for word in words if word is not None)])
    told = subprocess.run(["bash", "--norc", "--noprofile", "-c", line], stdout=subprocess.PIPE, check=True).stdout

    assert None not in words
    assert told.decode().split("\0")[1:-1] == texts


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_a_word_holds_nothing_that_a_terminal_acts_on(text: bytes) -> None:
    """Ctrl-C, Ctrl-D, a line end, or half of a character would reach bash as something else, or end the line."""
    word = as_word(text)

    assert (word is not None) == (WORDLIKE.fullmatch(text) is not None)
    assert word is None or (word.isascii() and word.isprintable())


def test_a_text_that_grows_beyond_what_a_line_takes_is_no_word() -> None:
    assert as_word(b"x" * MAX_WORD_BYTES) is not None
    assert as_word(b"x" * (MAX_WORD_BYTES + 1)) is None
    assert as_word(b"\n" * MAX_WORD_BYTES) is None
