"""Make `rollstream-bpe.json`: `python -m workers.llm.tokenizer.train [FILE]`.

The vocabulary is our own: 256 bytes, merges learned from `corpus.txt` (written for this project) and from word problems made
here with a fixed seed, and the control tokens of the ChatML family. The same Python package gives the same file, so a change of
the corpus shows in the file's fingerprint, which every trajectory records.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
N_MERGES = 1500
"""Enough for common words and LaTeX to be one token each, small enough for a file that is read in a few milliseconds."""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Never part of a text: decoders that skip special tokens drop them."""
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added tokens that a reader of the text shall see."""
PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Merges do not cross these pieces; digits stand alone, as in the models we imitate."""

_NAMES = ("Mia", "Omar", "Lena", "Tariq", "Ines", "Paulo", "Yuki", "Nora")
_THINGS = ("apples", "marbles", "stamps", "books", "tickets", "cookies", "pencils", "coins")
_TEMPLATES = (
    "{a} has {n} {t} and gives {m} of them to {b}. How many {t} does {a} have left?",
    "{a} buys {n} boxes with {m} {t} in each box. How many {t} are there altogether?",
    "What is the result of {n} + {m} * {k}? Answer with a whole number.",
    "We have {n} - {m} = {d}, so {a} keeps {d} {t}. The answer is \\boxed{{{d}}}.",
    "Together {a} and {b} have {n} {t}. {a} has {m} more than {b}. How many does {b} have?",
    "The product of {m} and {k} is {p}, and adding {n} gives {s}.",
)


def texts() -> Iterator[str]:
    """The corpus, line by line, then made-up problems."""
    yield from (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    rng = random.Random(20_240_229)
    for _ in range(300):
        n, m, k = rng.randrange(20, 999), rng.randrange(2, 20), rng.randrange(2, 40)
        a, b = rng.sample(_NAMES, 2)
        template = rng.choice(_TEMPLATES)
        yield template.format(a=a, b=b, t=rng.choice(_THINGS), n=n, m=m, k=k, d=n - m, p=m * k, s=n + m * k) + "\n"


def train() -> str:
    """The tokenizer as JSON text in the `tokenizers` format."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=256 + N_MERGES, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "rollstream-bpe.json"
    target.write_text(train(), encoding="utf-8")
    sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
