"""Records come back as they went, bit for bit (promise 5); bytes that are no message of ours give one typed error that keeps them
(promise 10)."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import time
import tracemalloc
from typing import Any, TypeVar

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from pipeline.codec import EXT_F32, EXT_U8, EXT_U32, MAX_ITEMS, decode, decode_map, encode
from pipeline.errors import DamagedBody, NewerMessage
from pipeline.messages import (
    SCHEMA_MAJOR,
    Failure,
    Grade,
    JobTemplate,
    Limits,
    Prompt,
    Recovery,
    Sampling,
    Segment,
    Stage,
    Trajectory,
    Turn,
)
from pipeline.testing import a_grade, a_prompt, a_segment, a_template, a_trajectory, a_turn

RECORDS = [Trajectory, Grade, JobTemplate, Prompt, Segment, Turn, Failure]


def same(one: object, other: object) -> bool:
    """Equal, with arrays compared bit by bit: NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, tuple | list):
        return isinstance(other, type(one)) and len(one) == len(other) and all(map(same, one, other))
    return one == other


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    tokens = draw(st.integers(0, 50))
    bits = st.binary(min_size=4 * tokens, max_size=4 * tokens)
    return a_segment(
        tokens=0,
        sampled=0,
        token_ids=np.frombuffer(draw(bits), np.uint32),
        logprobs=np.frombuffer(draw(bits), np.float32),
        sampled_mask=np.frombuffer(draw(st.binary(min_size=tokens, max_size=tokens)), np.uint8),
        loss_mask=np.frombuffer(draw(st.binary(min_size=tokens, max_size=tokens)), np.uint8),
    )


@given(st.lists(segments(), max_size=3), st.lists(st.integers(0, 9), max_size=3), st.text(), st.dictionaries(st.text(), plain, max_size=3))
def test_a_trajectory_comes_back_bit_for_bit(parts: list[Segment], turns: list[int], answer: str, extra: dict[str, object]) -> None:
    trajectory = a_trajectory(segments=tuple(parts), turns=tuple(map(a_turn, turns)), answer=answer, extra=extra)

    assert same(decode(Trajectory, encode(trajectory)), trajectory)


@given(st.text(), st.dictionaries(st.text(), plain, max_size=5))
def test_a_prompt_comes_back(name: str, data: dict[str, object]) -> None:
    assert decode(Prompt, encode(Prompt(id=name, data=data))) == Prompt(id=name, data=data)


@pytest.mark.parametrize("record", [a_template(recovery=Recovery.SALVAGE_PARTIAL), a_prompt(), a_grade(0.5), a_turn(3), a_trajectory()])
def test_each_record_comes_back(record: object) -> None:
    assert same(decode(type(record), encode(record)), record)


def test_arrays_in_any_memory_layout_travel_as_little_endian() -> None:
    strided = np.arange(20, dtype=np.uint32)[::2]
    big = np.arange(10, dtype=">u4")
    segment = a_segment(token_ids=strided)

    assert decode(Segment, encode(segment)).token_ids.tolist() == strided.tolist()
    assert decode(Segment, encode(dataclasses.replace(segment, token_ids=big))).token_ids.tolist() == big.tolist()


def test_decoded_arrays_cannot_be_changed() -> None:
    """They are views of the bytes: who changed one would change what somebody else reads."""
    with pytest.raises(ValueError, match="read-only"):
        decode(Segment, encode(a_segment())).token_ids[0] = 1


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"x".__class__, np.zeros(3, np.float64), np.zeros((2, 2), np.uint32), np.zeros(3, np.int32), 2**64, lambda: None],
    ids=["an object", "a set", "a class", "doubles", "a matrix", "signed", "beyond 64 bits", "a function"],
)
def test_what_cannot_travel_is_refused_by_the_sender(value: object) -> None:
    with pytest.raises((TypeError, OverflowError)):
        encode(a_prompt(data={"value": value}))


# ---- bytes from outside


def reads_or_refuses(cls: type, body: bytes) -> None:
    """A value, or one of the two errors; never another exception."""
    refusal = refusal_of(cls, body)
    if isinstance(refusal, DamagedBody):
        assert refusal.body == body
        assert refusal.why
    elif refusal is not None:
        assert refusal.found > SCHEMA_MAJOR


def refusal_of(cls: type, body: bytes) -> DamagedBody | NewerMessage | None:
    try:
        decode(cls, body)
    except (DamagedBody, NewerMessage) as refusal:
        return refusal
    return None


@given(st.binary(max_size=200), st.sampled_from(RECORDS))
@example(b"", Trajectory)
@example(b"\x00", Trajectory)
@example(b"\x01\x80", Trajectory)
def test_any_bytes_are_read_or_refused(body: bytes, cls: type) -> None:
    reads_or_refuses(cls, body)
    reads_or_refuses(cls, b"\x00" + body)


leaves = (
    plain
    | st.binary(max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34 - 1))
)
names = st.text(max_size=8) | st.sampled_from(["v", "segments", "turns", "stop"])
packable = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6), max_leaves=20)


@given(packable, st.sampled_from(RECORDS))
def test_any_msgpack_is_read_or_refused(value: object, cls: type) -> None:
    body = b"\x00" + msgpack.packb(value)

    reads_or_refuses(cls, body)

    with contextlib.suppress(DamagedBody):
        assert isinstance(decode_map(body), dict)


@given(st.data(), st.sampled_from([a_trajectory(), a_template(), a_grade(), a_prompt()]))
def test_a_message_with_flipped_cut_and_doubled_bytes_is_read_or_refused(data: st.DataObject, record: object) -> None:
    body = bytearray(encode(record))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(body) - 1))
        act = data.draw(st.sampled_from(["flip", "cut", "double"]))
        if act == "flip":
            body[at] ^= data.draw(st.integers(1, 255))
        elif act == "cut":
            del body[at : at + data.draw(st.integers(1, 8))]
        else:
            body[at:at] = body[at : at + data.draw(st.integers(1, 8))]
        if not body:
            break
    reads_or_refuses(type(record), bytes(body))


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\xdd" + (MAX_ITEMS + 1).to_bytes(4, "big"),
        b"\x00\xdf\xff\xff\xff\xff",
        b"\x00\xc9\xff\xff\xff\xff\x01",
        b"\x00\xc6\xff\xff\xff\xff",
        b"\x00\xdb\xff\xff\xff\xff",
        b"\x00\x81\xa1v\xdd\x00\x98\x96\x80",
        b"\x00" + b"\x91" * 100_000,
        b"\x00" + b"\x81\xa1v" * 100_000,
        b"\x00" + b"\x99" * 3000,
    ],
    ids=["long list", "long map", "long ext", "long bytes", "long text", "list within bounds", "deep lists", "deep maps", "wide and deep"],
)
def test_a_few_bytes_cannot_make_a_reader_allocate_without_end(body: bytes) -> None:
    """Lengths are believed by a naive reader before the data is there."""
    tracemalloc.start()
    started = time.monotonic()
    try:
        reads_or_refuses(Trajectory, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * len(body) + 20_000_000
    assert time.monotonic() - started < 5


def test_nothing_is_ever_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (pytest.fail, ("unpickled",))

    for body in (
        pickle.dumps(Trap()),
        b"\x00" + pickle.dumps(Trap()),
        b"\x00" + msgpack.packb({"v": 1, "id": pickle.dumps(Trap()), "data": {}}),
    ):
        reads_or_refuses(Prompt, body)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"stop": "because"}, "stop"),
        ({"stop": None}, "stop"),
        ({"segments": {}}, "segments"),
        ({"segments": [1]}, "segments"),
        ({"segments": [{"token_ids": [1, 2]}]}, "token_ids"),
        ({"segments": [{"token_ids": msgpack.ExtType(EXT_F32, b"")}]}, "token_ids"),
        ({"segments": [{"token_ids": msgpack.ExtType(EXT_U32, b"")}]}, "sampled_mask"),
        ({"answer": 7}, "answer"),
        ({"answer": b"bytes"}, "answer"),
        ({"extra": []}, "extra"),
        ({"turns": [{"index": 1.5}]}, "index"),
        ({"turns": [{"index": True}]}, "index"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(changes: dict[str, object], names: str) -> None:
    raw = {"v": SCHEMA_MAJOR, "segments": [], "turns": [], "stop": "finished", **changes}

    with pytest.raises(DamagedBody, match=names):
        decode(Trajectory, b"\x00" + msgpack.packb(raw))


@pytest.mark.parametrize("code", [0, 4, 77, 127])
def test_an_extension_type_that_is_not_ours_is_damage(code: int) -> None:
    with pytest.raises(DamagedBody):
        decode(Prompt, b"\x00" + msgpack.packb({"v": 1, "id": "p", "data": {"x": msgpack.ExtType(code, b"1234")}}))


def test_an_array_of_a_broken_length_is_damage() -> None:
    with pytest.raises(DamagedBody):
        decode(Prompt, b"\x00" + msgpack.packb({"v": 1, "id": "p", "data": {"x": msgpack.ExtType(EXT_U32, b"12345")}}))


# ---- old and new processes together


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    body = b"\x00" + msgpack.packb(
        {"v": SCHEMA_MAJOR, "task": "math", "from_the_future": [1, 2], "limits": {"max_turns": 3, "max_dreams": 9}}
    )

    template = decode(JobTemplate, body)

    assert template == JobTemplate(task="math", limits=Limits(max_turns=3))


def test_a_required_field_that_is_missing_is_named() -> None:
    with pytest.raises(DamagedBody, match="'task' is missing"):
        decode(JobTemplate, b"\x00" + msgpack.packb({"v": SCHEMA_MAJOR}))


def test_a_message_of_a_newer_major_is_not_damage() -> None:
    """It is handed back, so that a newer worker takes it; whatever else it holds is not looked at."""
    with pytest.raises(NewerMessage) as refused:
        decode(JobTemplate, b"\x00" + msgpack.packb({"v": SCHEMA_MAJOR + 1, "shape": "unknown"}))

    assert (refused.value.found, refused.value.known) == (SCHEMA_MAJOR + 1, SCHEMA_MAJOR)


@pytest.mark.parametrize("version", ["1", None, 1.0, -1, True, []])
def test_a_version_that_is_no_number_is_damage(version: object) -> None:
    with pytest.raises(DamagedBody, match="version"):
        decode(JobTemplate, b"\x00" + msgpack.packb({"v": version, "task": "math"}))


def test_whole_numbers_are_read_where_fractions_are_meant() -> None:
    """Some writers pack 1.0 as 1."""
    body = b"\x00" + msgpack.packb({"v": SCHEMA_MAJOR, "task": "math", "sampling": {"temperature": 1}})

    sampling = decode(JobTemplate, body).sampling

    assert (sampling, type(sampling.temperature)) == (Sampling(temperature=1.0), float)


def test_the_bytes_on_the_wire_are_what_the_design_says() -> None:
    """Codec byte, msgpack map, arrays as ext types of little-endian numbers: other languages read this."""
    segment = a_segment(
        token_ids=np.array([1, 258], np.uint32),
        sampled_mask=np.array([0, 1], np.uint8),
        loss_mask=np.array([0, 1], np.uint8),
        logprobs=np.array([np.nan, -0.5], np.float32),
    )
    body = encode(segment)
    raw = msgpack.unpackb(body[1:], ext_hook=msgpack.ExtType)

    assert body[0] == 0
    assert raw["v"] == 1
    assert raw["token_ids"] == msgpack.ExtType(EXT_U32, b"\x01\x00\x00\x00\x02\x01\x00\x00")
    assert raw["sampled_mask"] == msgpack.ExtType(EXT_U8, b"\x00\x01")
    assert raw["logprobs"] == msgpack.ExtType(EXT_F32, np.array([np.nan, -0.5], "<f4").tobytes())


def test_enums_travel_as_their_words() -> None:
    failure = Failure(stage=Stage.RUN, boundary="sandbox", kind="X", message="m", retryable=True)

    assert msgpack.unpackb(encode(failure)[1:])["stage"] == "run"
    assert decode(Failure, encode(failure)).stage is Stage.RUN


def test_a_long_trajectory_is_near_the_size_of_its_arrays() -> None:
    segment = a_segment(tokens=32_768, sampled=30_000)
    arrays = sum(array.nbytes for array in (segment.token_ids, segment.sampled_mask, segment.loss_mask, segment.logprobs))

    assert len(encode(a_trajectory(segments=(segment,)))) < 1.05 * arrays


_Scalar = TypeVar("_Scalar", bound=np.generic)
_Alias = TypeAliasType("_Alias", np.ndarray[Any, np.dtype[_Scalar]], type_params=(_Scalar,))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Aliased:
    token_ids: _Alias[np.uint32]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Floats:
    token_ids: _Alias[np.float32]


def test_an_array_whose_type_is_an_alias_comes_back() -> None:
    """NumPy 2.5, which Python 3.12 and newer get, made NDArray an alias of its own kind: every trajectory was then a damaged body."""
    record = _Aliased(token_ids=np.array([1, 2, 2**32 - 1], np.uint32))

    assert decode(_Aliased, encode(record)).token_ids.tolist() == [1, 2, 2**32 - 1]
    with pytest.raises(DamagedBody, match="token_ids"):
        decode(_Aliased, encode(_Floats(token_ids=np.array([0.5], np.float32))))
