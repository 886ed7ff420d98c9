"""The model's vocabulary: made for its task, so that a dialogue is some fifty tokens and the network can be small.

Merges cross words and lines: what every dialogue says alike (system message, tool, frames) becomes a few long tokens. Digits stand alone.
Control tokens and markup are those of ChatML, so the renderer of the workers takes it as any other.
"""

from __future__ import annotations

import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.train_tiny.dialogues import Spoken, answer, call, render
from examples.train_tiny.problems import SIGNS, some_problems
from pipeline.messages import ChatSettings
from workers.agent import renderer_for
from workers.llm.tokenizer.train import CONTROL, MARKUP

MOST_TOKENS = 4096
"""Far above what the few texts of the task give."""


def make_vocabulary() -> str:
    """The tokenizer, in the `tokenizers` JSON format. The same package gives the same text."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _texts(), trainers.BpeTrainer(vocab_size=MOST_TOKENS, initial_alphabet=alphabet, show_progress=False, min_frequency=20)
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def _texts() -> list[str]:
    """What stands between the control tokens of some dialogues."""
    renderer = renderer_for(ChatSettings())
    rng = random.Random(7)
    problems = some_problems(rng, held_out=False)
    texts = []
    for _ in range(100):
        problem = next(problems)
        for sign in SIGNS.values():
            value = problem.value(sign)
            turns = [Spoken(call(f"{problem.left}{sign}{problem.right}"), str(value)), Spoken(answer(value))]
            ids, _said = render(renderer, problem.question, turns)
            text = renderer.tokenizer.decode(ids)
            for name in renderer.tokenizer.specials:
                text = text.replace(name, "\x00")
            texts += [piece for piece in text.split("\x00") if piece]
    return texts
