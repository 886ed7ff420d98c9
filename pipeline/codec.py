"""Records to bytes and back: one codec byte, then a msgpack map.

Invariants:
  1. `decode(cls, encode(record)) == record`, arrays bit for bit.
  2. Arrays are msgpack ext types of raw little-endian numbers, so 32,768 tokens cost microseconds, not milliseconds.
  3. Unknown fields are ignored, missing ones take their default: old and new processes understand each other.
  4. Bytes that are no message of ours raise `DamagedBody` with the bytes, whatever is wrong with them; a higher major version raises
     `NewerMessage`. Nothing is ever unpickled, imported or named by a class.

The byte in front names the form of the rest: 0 = plain msgpack. A reader refuses one it does not know.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

import msgpack
import numpy as np

from pipeline.errors import DamagedBody, NewerMessage
from pipeline.messages import SCHEMA_MAJOR

PLAIN = 0
EXT_U32, EXT_F32, EXT_U8 = 1, 2, 3
DTYPES: dict[int, np.dtype[typing.Any]] = {EXT_U32: np.dtype("<u4"), EXT_F32: np.dtype("<f4"), EXT_U8: np.dtype("u1")}
EXT_OF_KIND = {("u", 4): EXT_U32, ("f", 4): EXT_F32, ("u", 1): EXT_U8}
MAX_ITEMS = 10_000_000
"""Most entries of one list or map that a reader takes: a few bytes cannot make it allocate without end."""

Record = TypeVar("Record")
_Reader = Callable[[object], object]


def encode(record: object) -> bytes:
    """Bytes of one record.

    Raises:
        TypeError: the record holds something that is not a plain value, a record or a u32/f32/u8 array.
    """
    packed = msgpack.packb({"v": SCHEMA_MAJOR, **_to_map(record)}, default=pack_other, use_bin_type=True)
    return b"\x00" + typing.cast(bytes, packed)


def decode(cls: type[Record], body: bytes) -> Record:
    """The record in `body`. Arrays are read-only views of the bytes.

    Raises:
        DamagedBody: not a message of this class.
        NewerMessage: written by a higher major version.
    """
    raw = _unpack(body)
    version = raw.get("v", 0)
    if type(version) is not int or version < 0:
        raise DamagedBody(f"schema version is {version!r}", body)
    if version > SCHEMA_MAJOR:
        raise NewerMessage(version, SCHEMA_MAJOR)
    try:
        return typing.cast(Record, _reader_of(typing.cast(Hashable, cls))(raw))
    except (TypeError, ValueError, KeyError) as error:
        raise DamagedBody(f"not a {cls.__name__}: {error}", body) from error


def to_map(record: object) -> dict[str, object]:
    """The fields of one record, for a wire of another form; records in it are left to `pack_other`."""
    return _to_map(record)


def from_map(cls: type[Record], raw: object) -> Record:
    """The record in a map that another wire brought.

    Raises:
        ValueError, TypeError: not a record of this class; says which field.
    """
    return typing.cast(Record, _reader_of(typing.cast(Hashable, cls))(raw))


def decode_map(body: bytes) -> dict[str, object]:
    """The map in `body` as it stands, for tools that show any message.

    Raises:
        DamagedBody: not a message.
    """
    return _unpack(body)


def _unpack(body: bytes) -> dict[str, object]:
    if not body:
        raise DamagedBody("empty", body)
    if body[0] != PLAIN:
        raise DamagedBody(f"unknown codec byte {body[0]}", body)
    try:
        raw = msgpack.unpackb(
            memoryview(body)[1:], ext_hook=_unpack_ext, raw=False, strict_map_key=True, max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS
        )
    except (ValueError, msgpack.UnpackException, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise DamagedBody(f"{type(error).__name__}: {error}", body) from error
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise DamagedBody(f"a {type(raw).__name__}, not a map with text keys", body)
    return raw


def _to_map(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in _field_names(typing.cast(Hashable, type(record)))}


@lru_cache(maxsize=256)
def _field_names(cls: typing.Any) -> tuple[str, ...]:
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no record: expected a dataclass of pipeline.messages or a handler's own")
    return tuple(f.name for f in fields(cls))


def pack_other(value: object) -> object:
    """What msgpack is to make of a value that it does not know: its `default`."""
    if isinstance(value, np.ndarray):
        code = EXT_OF_KIND.get((value.dtype.kind, value.dtype.itemsize))
        if code is None or value.ndim != 1:
            raise TypeError(f"array of {value.dtype} with shape {value.shape}: expected u32, f32 or u8 of one dimension")
        return msgpack.ExtType(code, np.ascontiguousarray(value, dtype=DTYPES[code]).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return _to_map(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot travel: expected plain values, records and arrays")


def _unpack_ext(code: int, data: bytes) -> object:
    dtype = DTYPES.get(code)
    if dtype is None or len(data) % dtype.itemsize:
        raise ValueError(f"extension type {code} with {len(data)} bytes")
    return np.frombuffer(data, dtype)


@lru_cache(maxsize=256)
def _reader_of(wanted: typing.Any) -> _Reader:
    """Builds the reader of a type once; it checks as it reads."""
    origin, args = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (object, typing.Any):
        return lambda value: value
    if origin in (types.UnionType, typing.Union):
        inner = [_reader_of(arg) for arg in args if arg is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"{wanted}: a field is one type, or that type or None")
        return lambda value: None if value is None else inner[0](value)
    if origin is typing.Literal:
        return lambda value: _one_of(value, args)
    if origin is frozenset:
        member = _reader_of(args[0])
        return lambda value: frozenset(member(x) for x in _checked(value, list))
    if origin is tuple:
        item = _reader_of(args[0])
        return lambda value: tuple(item(x) for x in _checked(value, list))
    if origin in (dict, Mapping):
        value_reader = _reader_of(args[1])
        return lambda value: {_checked(k, str): value_reader(v) for k, v in _checked(value, dict).items()}
    if hasattr(origin, "__value__"):  # an alias made by a `type` statement, as NDArray is one from NumPy 2.5 on
        return _reader_of(origin.__value__[args])
    if origin is np.ndarray:
        dtype = np.dtype(typing.get_args(args[1])[0])
        return lambda value: _array(value, dtype)
    if isinstance(wanted, type) and is_dataclass(wanted):
        return _record_reader(wanted)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return lambda value: wanted(value)
    if wanted is float:
        return _float
    if isinstance(wanted, type):
        return lambda value: _checked(value, wanted)
    raise TypeError(f"no reader for {wanted}")


def _record_reader(cls: type) -> _Reader:
    hints = typing.get_type_hints(cls)
    readers = [(f.name, _reader_of(hints[f.name]), f.default is MISSING and f.default_factory is MISSING) for f in fields(cls)]

    def read(value: object) -> object:
        raw = _checked(value, dict)
        found = {}
        for name, reader, required in readers:
            if name in raw:
                try:
                    found[name] = reader(raw[name])
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{name}: {error}") from error
            elif required:
                raise ValueError(f"field {name!r} is missing")
        return cls(**found)

    return read


_Checked = TypeVar("_Checked")


def _checked(value: object, wanted: type[_Checked]) -> _Checked:
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ValueError(f"expected {wanted.__name__}, got {type(value).__name__}")
    return value


def _one_of(value: object, allowed: tuple[object, ...]) -> object:
    if value not in allowed:
        raise ValueError(f"expected one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected float, got {type(value).__name__}")
    return float(value)


def _array(value: object, dtype: np.dtype[typing.Any]) -> object:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        raise ValueError(f"expected an array of {dtype}, got {getattr(value, 'dtype', type(value).__name__)}")
    return value
