"""Reads a GGUF file: a model with its tokenizer in one file, its weights quantized.

    "GGUF"  version  number of tensors  number of facts
    facts       name, type, value
    tensors     name, sizes (the fastest first), type, place in the data
    data        aligned to `general.alignment`

Numbers are little endian. Of the weights' types those are read that the small models we know are stored in: F32, F16, Q8_0 and Q4_1, the
last two in blocks of 32 values that share a scale (and an offset).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from pipeline.errors import InvalidRequest

F32Array = npt.NDArray[np.float32]
Value = int | float | bool | str | list["Value"]

BLOCK = 32
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
_F32, _F16, _Q4_1, _Q8_0 = 0, 1, 3, 8
_Q4_1_BLOCK = np.dtype([("scale", "<f2"), ("least", "<f2"), ("nibbles", "u1", BLOCK // 2)])
_Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", BLOCK)])


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    """Rows first."""
    kind: int
    start: int
    """From the beginning of the data."""


class GgufFile:
    """An open file. A context manager.

    Raises:
        InvalidRequest: it is no GGUF file of version 2 or 3.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.facts, self._tensors, self._data_start = _read_head(self._bytes, path)
        except (struct.error, UnicodeDecodeError) as error:
            self._bytes.close()
            raise InvalidRequest(f"{path} is broken off or no GGUF file: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bytes.close()

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._tensors)

    def text(self, name: str) -> str:
        """A fact that is a text.

        Raises:
            InvalidRequest: it is not there.
        """
        match self.facts.get(name):
            case str(text):
                return text
            case other:
                raise InvalidRequest(f"{self._path}: expected a text {name}, got {other!r:.60}")

    def number(self, name: str) -> float:
        """A fact that is a number; whole ones are exact.

        Raises:
            InvalidRequest: it is not there.
        """
        match self.facts.get(name):
            case int() | float() as number:
                return number
            case other:
                raise InvalidRequest(f"{self._path}: expected a number {name}, got {other!r:.60}")

    def texts(self, name: str) -> list[str]:
        """A fact that is a list of texts.

        Raises:
            InvalidRequest: it is not there.
        """
        match self.facts.get(name):
            case list(found):
                return [str(text) for text in found]
            case other:
                raise InvalidRequest(f"{self._path}: expected a list {name}, got {other!r:.60}")

    def tensor(self, name: str) -> F32Array:
        """A tensor's values, rows first.

        Raises:
            InvalidRequest: it is not there, or of a type that is not read here.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise InvalidRequest(f"{self._path} has no tensor {name}")
        size = int(np.prod(tensor.shape, dtype=np.int64))
        start = self._data_start + tensor.start
        if tensor.kind == _F32:
            values = np.frombuffer(self._bytes, "<f4", size, start).astype(np.float32)
        elif tensor.kind == _F16:
            values = np.frombuffer(self._bytes, "<f2", size, start).astype(np.float32)
        elif tensor.kind == _Q4_1:
            blocks = np.frombuffer(self._bytes, _Q4_1_BLOCK, size // BLOCK, start)
            nibbles = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1)
            values = nibbles * blocks["scale"].astype(np.float32)[:, None] + blocks["least"].astype(np.float32)[:, None]
        elif tensor.kind == _Q8_0:
            blocks = np.frombuffer(self._bytes, _Q8_0_BLOCK, size // BLOCK, start)
            values = blocks["values"] * blocks["scale"].astype(np.float32)[:, None]
        else:
            raise InvalidRequest(f"{self._path}: tensor {name} is of GGUF type {tensor.kind}; F32, F16, Q4_1 and Q8_0 are read")
        return np.ascontiguousarray(values.reshape(tensor.shape), dtype=np.float32)


def _read_head(data: mmap.mmap, path: Path) -> tuple[Mapping[str, Value], Mapping[str, _Tensor], int]:
    reader = _Reader(data)
    if data[:4] != b"GGUF":
        raise InvalidRequest(f"{path} is no GGUF file")
    reader.place = 4
    version, n_tensors, n_facts = reader.number("<I"), reader.number("<Q"), reader.number("<Q")
    if version not in (2, 3):
        raise InvalidRequest(f"{path} is a GGUF file of version {version}; 2 and 3 are read")
    facts: dict[str, Value] = {}
    for _ in range(int(n_facts)):
        name = reader.text()
        facts[name] = reader.value(int(reader.number("<I")))
    tensors: dict[str, _Tensor] = {}
    for _ in range(int(n_tensors)):
        name = reader.text()
        sizes = [int(reader.number("<Q")) for _ in range(int(reader.number("<I")))]
        tensors[name] = _Tensor(tuple(reversed(sizes)), int(reader.number("<I")), int(reader.number("<Q")))
    alignment = facts.get("general.alignment", 32)
    assert isinstance(alignment, int), "the format has it as a number"
    return facts, tensors, reader.place + -reader.place % alignment


class _Reader:
    """Values one behind the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.place = 0

    def number(self, form: str) -> float:
        (found,) = struct.unpack_from(form, self._data, self.place)
        self.place += struct.calcsize(form)
        return found  # type: ignore[no-any-return]  # what `form` says: int, float or bool

    def text(self) -> str:
        length = int(self.number("<Q"))
        self.place += length
        return self._data[self.place - length : self.place].decode()

    def value(self, kind: int) -> Value:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            inner, length = int(self.number("<I")), int(self.number("<Q"))
            return [self.value(inner) for _ in range(length)]
        return self.number(_NUMBERS[kind])
