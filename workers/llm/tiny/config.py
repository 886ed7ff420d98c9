"""The shape of a small Llama, as `config.json` of a checkpoint's folder says it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
"""Files of a checkpoint's folder, by the names that Hugging Face's libraries and vLLM look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """Sizes. The defaults are half a million parameters."""

    vocab_size: int
    width: int = 96
    layers: int = 4
    heads: int = 3
    hidden: int = 256
    """Width inside of a feed-forward block."""
    max_len: int = 192
    """Tokens of the longest sequence."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"expected a width that {self.heads} heads share in even parts, got {self.width}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def save(self, folder: Path, *, end_id: int) -> None:
        """Writes `config.json`, in Hugging Face's form of a Llama."""
        fields = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_width,
            "intermediate_size": self.hidden,
            "max_position_embeddings": self.max_len,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "eos_token_id": end_id,
            "bos_token_id": None,
            "torch_dtype": "float32",
        }
        (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TinyConfig:
        """Reads it.

        Raises:
            FileNotFoundError: there is no checkpoint.
            ValueError: it is of a model that is not served here.
        """
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        wanted = {"model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": found.get("num_attention_heads")}
        odd = ", ".join(name for name, value in wanted.items() if found.get(name) != value)
        if odd:
            raise ValueError(f"{folder / CONFIG}: expected a Llama with tied embeddings and as many key heads as heads; look at {odd}")
        return cls(
            vocab_size=found["vocab_size"],
            width=found["hidden_size"],
            layers=found["num_hidden_layers"],
            heads=found["num_attention_heads"],
            hidden=found["intermediate_size"],
            max_len=found["max_position_embeddings"],
            rope_theta=found["rope_theta"],
            norm_eps=found["rms_norm_eps"],
        )
