"""The tiny model: the same bytes for a seed, other weights for another, and a folder that is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ops.llm_server.safetensors_file import to_bf16
from ops.llm_server.tiny_model import write_tiny_model
from pipeline.errors import InvalidRequest
from workers.llm.tokenizer import load


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_seed_gives_the_same_bytes_everywhere(tmp_path: Path) -> None:
    count = write_tiny_model(tmp_path / "one")
    write_tiny_model(tmp_path / "two")

    assert sums(tmp_path / "one") == sums(tmp_path / "two")
    assert count == 210_240
    assert sums(tmp_path / "one")["model.safetensors"] == "b285103f2107396b0e609953493d13f09ad1f021e29dec701f5689b74ca91e5a"


def test_another_seed_changes_the_weights_and_nothing_that_a_client_sees(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "zero")
    write_tiny_model(tmp_path / "one", seed=1)

    before, after = sums(tmp_path / "zero"), sums(tmp_path / "one")
    assert {name for name in before if before[name] != after[name]} == {"config.json", "model.safetensors"}
    assert load(tmp_path / "one").fingerprint == load().fingerprint


def test_the_file_holds_every_tensor_whole(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny", max_model_len=512)

    raw = (tmp_path / "tiny" / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    del header["__metadata__"]
    ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert start % 8 == 0
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == len(raw) - start
    assert all(end - begin == 2 * int(np.prod(entry["shape"])) for entry in header.values() for begin, end in [entry["data_offsets"]])
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["max_position_embeddings"] == 512


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("theirs")

    with pytest.raises(InvalidRequest, match="holds something else"):
        write_tiny_model(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_its_own_folder_is_written_anew(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny", seed=1)
    write_tiny_model(tmp_path / "tiny")
    write_tiny_model(tmp_path / "other")

    assert sums(tmp_path / "tiny") == sums(tmp_path / "other")


def test_bfloat16_is_the_nearest_and_even_between_two() -> None:
    values = np.array([0.0, 1.0, -2.5, 1.00390625, 1.01171875, 1e30, 1e-40], dtype=np.float32)

    back = (to_bf16(values).astype(np.uint32) << 16).view(np.float32)

    assert back[:5].tolist() == [0.0, 1.0, -2.5, 1.0, 1.015625]
    assert np.allclose(back, values, rtol=1 / 256, atol=1e-41)
