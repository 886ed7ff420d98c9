"""Checkpoints: a folder with `config.json`, `model.safetensors` and `tokenizer.json`, as Hugging Face's libraries and vLLM read them."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from workers.llm.tiny.config import TOKENIZER, WEIGHTS, TinyConfig
from workers.llm.tiny.model import TinyLM


def save_weights(model: TinyLM, folder: Path) -> None:
    """Writes the weights, whole or not at all: a server may read them, a trainer may be killed while it writes."""
    draft = folder / f".{WEIGHTS}.new"
    save_file({name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}, draft)
    draft.replace(folder / WEIGHTS)


def save_checkpoint(model: TinyLM, folder: Path, *, tokenizer: str, end_id: int) -> None:
    """Writes a folder that can be served.

    Args:
        tokenizer: in the `tokenizers` JSON format.
        end_id: the token that ends a turn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save(folder, end_id=end_id)
    (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    save_weights(model, folder)


def load_model(folder: Path, config: TinyConfig | None = None) -> TinyLM:
    """The model in a folder, or, with a `config`, of that shape.

    Raises:
        OSError, ValueError, RuntimeError: there is none, or it is of another shape; says what is wrong.
    """
    model = TinyLM(config or TinyConfig.load(folder))
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model
