"""Text and control stay apart; everything comes from local files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.llm.tokenizer import Tokenizer, from_tiktoken, load
from workers.llm.tokenizer.tokenizer import OWN_FILE
from workers.llm.tokenizer.train import CONTROL, MARKUP, train

TOKENIZER = load()
SPELT_CONTROL = st.lists(st.one_of(st.text(max_size=8), st.sampled_from([*CONTROL, *MARKUP])), max_size=8).map("".join)


@given(SPELT_CONTROL)
def test_text_never_becomes_a_control_token(text: str) -> None:
    assert TOKENIZER.special_ids.isdisjoint(TOKENIZER.encode(text))


@given(SPELT_CONTROL)
def test_text_comes_back_as_it_was(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30))
def test_a_stream_gives_the_text_of_the_whole(ids: list[int]) -> None:
    stream = TOKENIZER.stream()

    assert "".join(stream.push(id_) for id_ in ids) + stream.finish() == TOKENIZER.decode(ids)


def test_our_own_text_may_hold_control_tokens() -> None:
    ids = TOKENIZER.encode_template("<|im_start|>user\nhi<|im_end|>")

    assert ids[0] == TOKENIZER.special("<|im_start|>")
    assert ids[-1] == TOKENIZER.special("<|im_end|>")


def test_a_lone_surrogate_does_not_stop_the_encoder() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a\ufffdb"


def test_one_character_over_several_tokens_is_given_out_when_it_is_whole() -> None:
    ids = TOKENIZER.encode("x🦿y")
    stream = TOKENIZER.stream()

    pieces = [stream.push(id_) for id_ in ids]

    assert "🦿" in pieces
    assert not any("\ufffd" in piece for piece in pieces)


def test_the_shipped_file_is_what_the_training_script_makes() -> None:
    assert OWN_FILE.read_text(encoding="utf-8") == train()
    assert OWN_FILE.stat().st_size < 150_000


def test_the_fingerprint_names_the_file(tmp_path: Path) -> None:
    changed = json.loads(OWN_FILE.read_bytes())
    changed["normalizer"] = {"type": "NFC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))

    assert load(tmp_path).fingerprint != TOKENIZER.fingerprint
    assert len(TOKENIZER.fingerprint) == 64


def test_a_missing_file_is_not_looked_for_on_a_hub() -> None:
    with pytest.raises(FileNotFoundError, match="nothing is fetched"):
        load("Some/Model-7B")


def test_the_folder_of_a_user_who_is_not_here_is_missing_like_any_other() -> None:
    """It was an error that nobody knew: no failure of the worker that another one may do better."""
    with pytest.raises(FileNotFoundError, match="~nobody-here/model"):
        load("~nobody-here/model")


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a tokenizer"):
        Tokenizer(b'{"model": 7}')


def test_ids_with_gaps_are_refused_instead_of_moved() -> None:
    """The library numbers added tokens on from the end of the vocabulary: a gap in a file would silently shift what follows."""
    shifted = json.loads(OWN_FILE.read_bytes())
    for token in shifted["added_tokens"]:
        token["id"] += 100

    with pytest.raises(ValueError, match="gaps"):
        Tokenizer(json.dumps(shifted).encode())


def test_an_unknown_control_token_is_told_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"<\|im_end\|>"):
        TOKENIZER.special("<|eot_id|>")


def test_a_tiktoken_vocabulary_keeps_its_ids_and_its_gaps() -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"abc", b" x"]
    lines = b"\n".join(base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens))

    tokenizer = Tokenizer(from_tiktoken(lines, pattern=r"\s?\w+|.", specials={"<|im_end|>": 300}, nfc=True))

    assert tokenizer.encode("abc x") == [257, 258]
    assert tokenizer.encode("e\u0301") == list("é".encode())
    assert tokenizer.encode_template("ab<|im_end|>") == [256, 300]
    assert tokenizer.decode([257, 300]) == "abc<|im_end|>"
    assert tokenizer.vocab_size == 301


def test_a_line_that_is_no_tiktoken_line_is_named() -> None:
    with pytest.raises(ValueError, match="line 2"):
        from_tiktoken(b"YQ== 0\nnonsense", pattern=".", specials={})
