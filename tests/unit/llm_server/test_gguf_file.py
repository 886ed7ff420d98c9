"""Reading a GGUF file: facts, and weights in the four forms that are read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ops.llm_server.gguf_file import GgufFile
from ops.llm_server.smollm2 import _rotary_rows
from pipeline.errors import InvalidRequest

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def a_gguf(path: Path, facts: dict[str, bytes], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> Path:
    """A file with facts (type and value, packed) and tensors (sizes with the fastest first, type, data)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    for name, value in facts.items():
        head += text(name) + value
    data = b""
    for name, (sizes, kind, raw) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, len(data))
        data += raw
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def test_facts_of_every_kind_are_read(tmp_path: Path) -> None:
    facts = {
        "a.text": struct.pack("<I", 8) + text("llama"),
        "a.number": struct.pack("<II", 4, 30),
        "a.float": struct.pack("<If", 6, 0.5),
        "a.truth": struct.pack("<I?", 7, True),
        "a.list": struct.pack("<IIQ", 9, 8, 2) + text("Ġt") + text("he"),
    }
    with GgufFile(a_gguf(tmp_path / "m.gguf", facts, {})) as file:
        assert (file.text("a.text"), file.number("a.number"), file.number("a.float")) == ("llama", 30, 0.5)
        assert file.facts["a.truth"] is True
        assert file.texts("a.list") == ["Ġt", "he"]
        with pytest.raises(InvalidRequest, match=r"expected a number a\.text"):
            file.number("a.text")


def test_weights_of_every_form_are_read_rows_first(tmp_path: Path) -> None:
    plain = np.arange(64, dtype="<f4")
    q8 = struct.pack("<e", 0.5) + np.arange(-16, 16, dtype="i1").tobytes()
    # low halves of the bytes are the first 16 values, high halves the other 16
    q4 = struct.pack("<ee", 0.25, -1.0) + bytes((high << 4) | low for low, high in zip(range(16), reversed(range(16)), strict=True))
    tensors = {
        "f32": ((32, 2), F32, plain.tobytes()),
        "f16": ((2,), F16, np.array([1.5, -2], dtype="<f2").tobytes()),
        "q8": ((32,), Q8_0, q8),
        "q4": ((32,), Q4_1, q4),
        "q6": ((32,), 14, b"\0" * 64),
    }
    with GgufFile(a_gguf(tmp_path / "m.gguf", {}, tensors)) as file:
        assert np.array_equal(file.tensor("f32"), plain.reshape(2, 32))
        assert file.tensor("f16").tolist() == [1.5, -2.0]
        assert file.tensor("q8").tolist() == [value / 2 for value in range(-16, 16)]
        assert file.tensor("q4").tolist() == [value / 4 - 1 for value in [*range(16), *reversed(range(16))]]
        with pytest.raises(InvalidRequest, match="GGUF type 14"):
            file.tensor("q6")
        with pytest.raises(InvalidRequest, match="no tensor nope"):
            file.tensor("nope")


@pytest.mark.parametrize(
    "content", [b"GGUF", b"PK\3\4 not this", b"GGUF" + struct.pack("<IQQ", 3, 0, 5), b"GGUF" + struct.pack("<IQQ", 9, 0, 0)]
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)

    with pytest.raises(InvalidRequest):
        GgufFile(tmp_path / "m.gguf")


def test_rotary_rows_go_from_pairs_to_halves_within_each_head() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)

    assert _rotary_rows(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
