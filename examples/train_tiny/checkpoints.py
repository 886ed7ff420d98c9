"""Checkpoints of a run: what is served is what is kept.

Each step has a folder with the weights, which the server loads from there; when the step was acked, the optimizer and the trainer's place
in the run follow, and only then `latest` names it. Killed in between, a run goes on from the checkpoint before.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.train_tiny.dapo import Learner
from workers.llm import chatml
from workers.llm.tiny.checkpoint import load_model, save_checkpoint
from workers.llm.tiny.config import TOKENIZER
from workers.llm.tokenizer import load

LATEST, OPTIMIZER, STATE = "latest", "optimizer.pt", "state.json"
KEPT = 2
"""A server may still read the one before."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run goes on."""

    rollouts: Mapping[str, object]
    """As `run.state_dict()` said it."""
    seconds: float
    """That it trained before."""
    sampled_tokens: int
    """Of the run so far."""


class Checkpoints:
    """The checkpoints under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, step: int) -> Path:
        """Folder of a step."""
        return self._folder / f"step-{step:05d}"

    def save_weights(self, learner: Learner, step: int, tokenizer: Path) -> Path:
        """Writes what a server loads."""
        text = (tokenizer / TOKENIZER).read_text(encoding="utf-8")
        save_checkpoint(learner.model, self.path(step), tokenizer=text, end_id=load(tokenizer).special(chatml.CLOSE))
        return self.path(step)

    def finish(self, learner: Learner, step: int, resumed: Resumed) -> None:
        """Makes it the one that a run goes on from."""
        folder = self.path(step)
        torch.save(learner.optimizer.state_dict(), folder / OPTIMIZER)
        state = {"rollouts": dict(resumed.rollouts), "seconds": resumed.seconds, "sampled_tokens": resumed.sampled_tokens}
        (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
        draft = self._folder / f".{LATEST}.new"
        draft.write_text(folder.name, encoding="utf-8")
        draft.replace(self._folder / LATEST)
        for old in sorted(self._folder.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)

    def resume(self, *, learning_rate: float) -> tuple[Learner, Resumed] | None:
        """The learner of the latest checkpoint and where its run stands; None when there is none."""
        try:
            folder = self._folder / (self._folder / LATEST).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        learner = Learner(load_model(folder), learning_rate=learning_rate)
        learner.optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return learner, Resumed(found["rollouts"], found["seconds"], found["sampled_tokens"])
