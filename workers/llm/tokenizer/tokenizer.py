"""A tokenizer that keeps text and control apart.

Invariants:
  1. `encode` takes text from anywhere (users, tools, files) and never yields the id of an added token, whatever the text spells:
     an observation cannot open a turn or close one.
  2. `encode_template` is for text that we wrote ourselves; there `<|im_start|>` is the control token.
  3. Everything is read from local files. `fingerprint` names the bytes that were read, so two processes that agree on it agree on
     every id.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its thread pool and a later fork do not go together

import tokenizers
from tokenizers.decoders import DecodeStream

OWN_FILE = Path(__file__).with_name("rollstream-bpe.json")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
SHORT_TEXT, MOST_SHORT_TEXTS = 32, 4096
"""Characters, and how many such texts are remembered: the pieces between a template's control tokens, which every turn encodes again."""


class Tokenizer:
    """Ids of one vocabulary.

    Args:
        definition: a file in the `tokenizers` JSON format, as bytes.

    Raises:
        ValueError: the bytes are no tokenizer, or plain text would yield a control id.
    """

    def __init__(self, definition: bytes) -> None:
        try:
            parsed = json.loads(definition)
            self.raw: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
            plain = {**parsed, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ValueError(f"expected a tokenizer in the `tokenizers` JSON format: {error}") from error
        self.raw.no_truncation()
        self.raw.no_padding()
        self._short_texts: dict[str, tuple[int, ...]] = {}
        self.fingerprint = hashlib.sha256(definition).hexdigest()
        self.specials: Mapping[str, int] = {token["content"]: int(token["id"]) for token in parsed.get("added_tokens") or []}
        """Added tokens by their text: control tokens and markup such as `<tool_call>`."""
        self.special_ids = frozenset(self.specials.values())
        self.vocab_size = max(self.raw.get_vocab(with_added_tokens=True).values()) + 1
        """One more than the largest id."""
        for text, id_ in self.specials.items():
            if self.raw.token_to_id(text) != id_:
                raise ValueError(f"the file gives {text!r} the id {id_}, the library {self.raw.token_to_id(text)}: its ids have gaps")
            if not self.special_ids.isdisjoint(self._plain.encode(text, add_special_tokens=False).ids):
                raise ValueError(f"plain text {text!r} would become a control id: this vocabulary cannot keep observations apart")

    def encode(self, text: str) -> list[int]:
        """Ids of `text` taken as text; lone surrogates, which no tokenizer takes, become U+FFFD."""
        known = self._short_texts.get(text)
        if known is not None:
            return [*known]
        ids = _ids(self._plain, text)
        if len(text) <= SHORT_TEXT and len(self._short_texts) < MOST_SHORT_TEXTS:
            self._short_texts[text] = tuple(ids)
        return ids

    def encode_template(self, text: str) -> list[int]:
        """Ids of text that we wrote, in which the texts of added tokens mean those tokens."""
        return _ids(self.raw, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the whole list, control tokens spelt out; bytes that are no UTF-8 become U+FFFD."""
        return str(self.raw.decode(ids, skip_special_tokens=False))

    def special(self, text: str) -> int:
        """Id of an added token.

        Raises:
            KeyError: this vocabulary has none of that text.
        """
        try:
            return self.specials[text]
        except KeyError:
            raise KeyError(f"the tokenizer has no token {text!r}; it has {', '.join(sorted(self.specials)) or 'no added tokens'}") from None

    def stream(self) -> TextStream:
        """A decoder for ids that come one by one."""
        return TextStream(self)


def _ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Ids alone; where in the text each token stands, which `encode` finds as well, costs a third more."""
    (found,) = tokenizer.encode_batch_fast([_LONE_SURROGATE.sub(_REPLACEMENT, text)], add_special_tokens=False)
    return list(found.ids)


class TextStream:
    """Text of a growing list of ids, handed out as soon as it cannot change any more.

    One character may be spread over several tokens; until it is whole nothing of it is given out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._held: list[int] = []

    def push(self, id_: int) -> str:
        """The text that is certain since the last push."""
        text = self._decoder.step(self._tokenizer.raw, id_)
        if text is None:
            self._held.append(id_)
            return ""
        self._held.clear()
        return str(text)

    def finish(self) -> str:
        """What is left: the bytes of an unfinished character, as U+FFFD."""
        return self._tokenizer.decode(self._held)


def load(source: str | Path = "") -> Tokenizer:
    """The tokenizer in `source`: a JSON file, or a folder with a `tokenizer.json`; empty = our own small one.

    Loaded once a process.

    Raises:
        FileNotFoundError: there is no such file. Names of models on a hub are not looked up.
    """
    path = _path_of(source) if source else OWN_FILE
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"no tokenizer at {path}: give a tokenizer.json or a folder that holds one (nothing is fetched from a hub; download it first)"
        )
    return _load(path.resolve())


def _path_of(source: str | Path) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError as error:  # `~name` of nobody here
        raise FileNotFoundError(f"no tokenizer at {source}: {error}") from error


@lru_cache(maxsize=4)
def _load(path: Path) -> Tokenizer:
    return Tokenizer(path.read_bytes())
