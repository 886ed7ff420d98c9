"""A tiny random model that vLLM loads like any other: for tests and trials on machines without a GPU.

Qwen3, two layers of width 64, about 200 thousand parameters, with the tokenizer of this package, so that the package's own renderer
fits it. It knows nothing; what it says is noise, with true logprobs.

Invariants:
  1. The same seed gives the same bytes, on every machine and with every numpy: uniform draws of the frozen generator, no libm.
  2. Another seed gives other weights under the same tokenizer, template and configuration: an update of weights, not another model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ops.llm_server.chat_templates import TemplateName, chat_template
from ops.llm_server.safetensors_file import Bf16, to_bf16, write_safetensors
from pipeline.errors import InvalidRequest
from workers.llm import chatml, llama3
from workers.llm.tokenizer import Tokenizer
from workers.llm.tokenizer.tokenizer import OWN_FILE

HIDDEN, INTERMEDIATE, LAYERS = 64, 128, 2
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
"""64 is a head size that every attention kernel of vLLM has, the CPU's too."""
SPREAD = 0.2
"""Standard deviation of the weights: logits are then some nats apart, so that tokens differ in probability."""
END_OF_TEXT = "<|endoftext|>"
MADE_BY = "rollstream_tiny_seed"
"""In `config.json`: the seed; also the mark by which a folder of ours is known."""


def write_tiny_model(folder: Path, *, seed: int = 0, template: TemplateName = "qwen", max_model_len: int = 32_768) -> int:
    """Writes the model's folder and answers its number of parameters.

    Raises:
        InvalidRequest: the folder holds something else, or a number does not fit.
    """
    if not 0 <= seed < 2**32:
        raise InvalidRequest(f"expected a seed from 0 to {2**32 - 1}, got {seed}", field="seed")
    if not 64 <= max_model_len <= 2**20:
        raise InvalidRequest(f"expected a context of 64 to {2**20} tokens, got {max_model_len}", field="max_model_len")
    refuse_foreign_folder(folder, MADE_BY)
    folder.mkdir(parents=True, exist_ok=True)
    definition, ends = _vocabulary(template)
    tokenizer = Tokenizer(definition)
    end, *other_ends = (tokenizer.special(text) for text in ends)
    pad = tokenizer.special(END_OF_TEXT)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "max_position_embeddings": max_model_len,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
        MADE_BY: seed,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": [end, *other_ends], "pad_token_id": pad})
    (folder / "tokenizer.json").write_bytes(definition)
    write_tokenizer_config(folder, end=ends[0], pad=END_OF_TEXT, template=chat_template(template), max_model_len=max_model_len)
    return write_safetensors(folder / "model.safetensors", dict(_weights(seed, tokenizer.vocab_size)))


def _vocabulary(template: TemplateName) -> tuple[bytes, tuple[str, ...]]:
    """The tokenizer's definition, and the tokens that end a turn, the usual one first. Llama's control tokens stand behind our own."""
    own = OWN_FILE.read_bytes()
    if template != "llama3":
        return own, (chatml.CLOSE, END_OF_TEXT)
    ends = (llama3.END_OF_TURN, llama3.END_OF_MESSAGE, llama3.END_OF_TEXT)
    parsed = json.loads(own)
    first = 1 + max(token["id"] for token in parsed["added_tokens"])
    like = {name: parsed["added_tokens"][0][name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    added = (llama3.BEGIN, *ends, llama3.HEADER_OPEN, llama3.HEADER_CLOSE, llama3.PYTHON)
    parsed["added_tokens"] += [{"id": first + place, "content": text, **like} for place, text in enumerate(added)]
    return json.dumps(parsed, ensure_ascii=False).encode(), ends


def write_tokenizer_config(folder: Path, *, end: str, pad: str, template: str, max_model_len: int) -> None:
    """What the tokenizer's own file does not say: its class, the control tokens by role, and the chat template."""
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "pad_token": pad,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_model_len,
            "chat_template": template,
        },
    )


def refuse_foreign_folder(folder: Path, mark: str) -> None:
    """Lets pass what is not there, empty, or a folder whose `config.json` bears the mark.

    Raises:
        InvalidRequest: something else is in it, which would be mixed with ours.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    config = folder / "config.json"
    if config.is_file() and f'"{mark}"' in config.read_text(encoding="utf-8", errors="replace"):
        return
    raise InvalidRequest(f"{folder} is there and holds something else: name a new folder", field="folder")


def _weights(seed: int, vocab_size: int) -> Iterator[tuple[str, Bf16]]:
    """The tensors under the names that loaders know, in a fixed order: each draw depends on all before it."""
    draw = np.random.RandomState(seed)  # its stream is frozen, that of newer generators is not
    bound = SPREAD * math.sqrt(3.0)

    def matrix(rows: int, columns: int) -> Bf16:
        return to_bf16(((draw.random_sample((rows, columns)) * 2.0 - 1.0) * bound).astype(np.float32))

    def ones(size: int) -> Bf16:
        return to_bf16(np.ones(size, dtype=np.float32))

    yield "model.embed_tokens.weight", matrix(vocab_size, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", ones(HIDDEN)
        yield f"{at}.self_attn.q_proj.weight", matrix(HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.k_proj.weight", matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.v_proj.weight", matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.o_proj.weight", matrix(HIDDEN, HEADS * HEAD_DIM)
        yield f"{at}.self_attn.q_norm.weight", ones(HEAD_DIM)
        yield f"{at}.self_attn.k_norm.weight", ones(HEAD_DIM)
        yield f"{at}.post_attention_layernorm.weight", ones(HIDDEN)
        yield f"{at}.mlp.gate_proj.weight", matrix(INTERMEDIATE, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", matrix(INTERMEDIATE, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", matrix(HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", ones(HIDDEN)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
