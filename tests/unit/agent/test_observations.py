"""Answers of tools in a prompt: never longer than their bound, cut between characters, and what is missing is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.agent import cut_observation
from workers.llm.tokenizer import load

TOKENIZER = load()
WAVE = "\U0001f30a"


def n_tokens(text: str) -> int:
    return len(TOKENIZER.encode(text))


@given(st.text(max_size=400), st.integers(0, 60))
def test_an_observation_is_never_longer_than_its_bound(text: str, max_tokens: int) -> None:
    cut = cut_observation(TOKENIZER, text, max_tokens)

    assert n_tokens(cut) <= max_tokens
    if n_tokens(text) <= max_tokens:
        assert cut == text


def test_one_that_is_exactly_as_long_as_allowed_stays_whole_and_one_more_token_is_cut() -> None:
    text = "one two three\n" * 40

    assert cut_observation(TOKENIZER, text, n_tokens(text)) == text
    assert "characters left out]" in cut_observation(TOKENIZER, text + "x", n_tokens(text))


@pytest.mark.parametrize("max_tokens", range(70))
def test_a_character_of_several_tokens_is_whole_or_not_there(max_tokens: int) -> None:
    """A wave is four tokens here, one a byte: most cuts fall inside one."""
    assert n_tokens(WAVE) == 4

    cut = cut_observation(TOKENIZER, WAVE * 200, max_tokens)

    assert "\ufffd" not in cut
    assert n_tokens(cut) <= max_tokens


def test_what_is_left_out_is_counted_in_characters() -> None:
    cut = cut_observation(TOKENIZER, WAVE * 200, 64)

    kept = cut.count(WAVE)
    assert f"\n[{200 - kept:,} characters left out]\n" in cut
    assert kept > 5


def test_without_room_there_is_nothing() -> None:
    assert cut_observation(TOKENIZER, "text" * 100, 0) == ""
    assert cut_observation(TOKENIZER, "", 0) == ""


def test_with_too_little_room_for_words_about_it_there_is_the_beginning() -> None:
    cut = cut_observation(TOKENIZER, "word " * 100, 5)

    assert ("word " * 100).startswith(cut)
    assert 0 < n_tokens(cut) <= 5


def test_a_long_observation_keeps_head_and_tail_and_says_what_is_missing() -> None:
    text = "first line\n" + "x y z\n" * 100_000 + "last line"

    cut = cut_observation(TOKENIZER, text, 100)

    assert cut.startswith("first line\n")
    assert cut.endswith("last line")
    assert "characters left out]" in cut
