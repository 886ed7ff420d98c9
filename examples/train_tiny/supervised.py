"""The checkpoint that training begins with: it knows the form of things (`taught.py`), and mostly does not get them right."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional

from examples.train_tiny.dialogues import render
from examples.train_tiny.problems import some_problems
from examples.train_tiny.taught import taught
from examples.train_tiny.vocabulary import make_vocabulary
from pipeline.messages import ChatSettings
from workers.agent import renderer_for
from workers.llm import chatml
from workers.llm.tiny.checkpoint import save_checkpoint
from workers.llm.tiny.config import TOKENIZER, WEIGHTS, TinyConfig
from workers.llm.tiny.model import TinyLM

ROWS, LEARNING_RATE = 32, 3e-3
NEVER_SAID = -100
"""Target of tokens that the model reads."""


def make_supervised(folder: Path, *, seed: int, say: Callable[[str], None], steps: int) -> None:
    """Trains the checkpoint, unless the folder has it."""
    if (folder / WEIGHTS).exists():
        return
    started_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = make_vocabulary()
    (folder / TOKENIZER).write_text(vocabulary, encoding="utf-8")
    renderer = renderer_for(ChatSettings(tokenizer=str(folder)))
    torch.manual_seed(seed)
    model = TinyLM(TinyConfig(vocab_size=renderer.tokenizer.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    rng = random.Random(f"supervised/{seed}")
    problems = some_problems(rng, held_out=False)
    for step in range(1, steps + 1):
        is_drill = step <= steps // 2  # to copy numbers is what takes long
        dialogues = [render(renderer, problem.question, taught(problem, rng, is_drill=is_drill)) for problem in islice(problems, ROWS)]
        ids, targets = _batch(dialogues)
        said = targets != NEVER_SAID
        loss = functional.cross_entropy(model(ids, said), targets[said])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            say(f"supervised {step}/{steps}: loss {loss.item():.3f} a token, {time.monotonic() - started_s:.0f} s")
    save_checkpoint(model, folder, tokenizer=vocabulary, end_id=renderer.tokenizer.special(chatml.CLOSE))


def _batch(dialogues: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and what follows each, int64, [ROWS, T]."""
    length = max(len(ids) for ids, _ in dialogues) - 1
    inputs = torch.zeros(len(dialogues), length, dtype=torch.long)
    targets = torch.full((len(dialogues), length), NEVER_SAID)
    for row, (ids, said) in enumerate(dialogues):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, : len(ids) - 1] = torch.where(torch.tensor(said[1:]) == 1, torch.tensor(ids[1:]), NEVER_SAID)
    return inputs, targets
