"""Texts by their lines, values by what they are; the files of cases have the rest (`tests/cases/data/code*.jsonl`)."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections import OrderedDict, deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.graders.code.compare import returned_value, same_text, same_value
from workers.graders.code.inside.plain import NotPlain, from_plain, to_plain

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.datetimes()
    | st.times()
    | st.timedeltas()
    | st.builds(range, st.integers(), st.integers()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "same"),
    [
        (b"1.0000001", "1", 1e-6, True),
        (b"1.00001", "1", 1e-6, False),
        (b"1000000.9", "1000000.0", 1e-6, True),
        (b"1000001", "1000000", 1e-3, False),
        (b"-3.25", "3.25", 1e-6, False),
        (b"1.0 2.0", "1.0  2.0", 1e-6, False),
        (b"1e-9", "0", 1e-6, True),
        (b"inf", "inf", 1e-6, True),
        (b"1e400", "1e401", 1e-6, False),
        ("٣.٠".encode(), "3.0", 1e-6, False),
        (b"0x10.0", "16.0", 1e-6, False),
        (b"1" * 500 + b".5", "1" * 500 + ".4", 1e-6, False),
        (b"a\n\n\nb  \n\n", "a\n\n\nb", None, True),
        (b"a\nb", "a\n\nb", None, False),
        (b"\xff", "ÿ", None, False),
    ],
)
def test_texts(found: bytes, expected: str, tolerance: float | None, same: bool) -> None:
    assert same_text(found, expected, tolerance) is same


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "same"),
    [
        ((1, (2,)), [1, [2]], None, True),
        ({1: 2, False: 3}, {"1": 2, "false": 3}, None, True),
        ({None: 2, 0.5: 3}, {"null": 2, "0.5": 3}, None, True),
        ({"a": {"b": (1,)}}, {"a": {"b": [1]}}, None, True),
        ([0.1 + 0.2], [0.3], 1e-6, True),
        ([0.1 + 0.2], [0.3], None, False),
        (True, 1, None, True),
        ("1", 1, None, False),
        (None, False, None, False),
        (None, 0.0, 1e-6, False),
        (float("nan"), float("nan"), None, True),
        (10**400, 1.0, 1e-6, False),
        ([], {}, None, False),
        (Decimal("1.50"), 1.5, None, True),
        (Decimal("0.1"), 0.1, None, False),
        (Decimal("0.1"), 0.1, 1e-9, True),
        (Decimal("1E+999999999"), 1, None, False),
        (Decimal("sNaN"), 1.0, 1e-9, False),
        ([Fraction(1, 2), Fraction(4, 2)], [0.5, 2], None, True),
        (deque([1, 2]), [1, 2], None, True),
        (OrderedDict(a=1), {"a": 1}, None, True),
        (True, 1.0, 1e-6, True),
        ({"a": 1, "b": 2}, {"a": 1}, None, False),
    ],
)
def test_values(found: object, expected: object, tolerance: float | None, same: bool) -> None:
    returned = returned_value(json.loads(json.dumps(to_plain(found))))

    assert same_value(returned, expected, tolerance) is same


@pytest.mark.parametrize("value", [{1, 2}, range(3), datetime.date(2020, 1, 1), frozenset("a"), b"bytes", 1j, {(1, 2): 3}, [{"a": {3}}]])
def test_kinds_that_no_expected_value_has_are_no_answers(value: object) -> None:
    with pytest.raises(ValueError, match=r"kind|name"):
        returned_value(json.loads(json.dumps(to_plain(value))))


def test_numbers_that_share_a_hash_cost_no_more_than_others() -> None:
    """As names of a map they would make a worker compare each with each: minutes for what fits an answer."""
    modulus = sys.hash_info.modulus
    written = {"~": ["dict", *([n * modulus, 0] for n in range(20_000))]}

    started = time.process_time()
    returned_value(written)

    assert time.process_time() - started < 2


@given(PLAIN)
def test_a_plain_value_comes_back_as_it_was(value: object) -> None:
    back = from_plain(json.loads(json.dumps(to_plain(value))))

    assert back == value
    assert type(back) is type(value)


def test_of_a_derived_kind_only_what_it_holds_travels() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

        def __index__(self) -> int:
            return 99

        def __repr__(self) -> str:
            return "99"

    class Tagged(dict[str, object]):
        def items(self) -> object:  # type: ignore[override]
            return [("forged", 1)]

    assert json.dumps(to_plain([Liar(3), Tagged(a=1)])) == '[3, {"a": 1}]'


def test_a_map_that_looks_like_a_tag_is_a_map() -> None:
    forged = {"~": ["int", "0x2a"]}

    assert from_plain(json.loads(json.dumps(to_plain(forged)))) == forged


@pytest.mark.parametrize("value", [object(), len, iter([1])])
def test_an_object_does_not_travel(value: object) -> None:
    with pytest.raises(NotPlain):
        to_plain([value])


@pytest.mark.parametrize("written", [{"~": []}, {"~": ["object", 1]}, {"~": ["int", 5]}, {"~": ["dict", 1]}, {"~": ["set", []]}, {"~": 7}])
def test_what_nobody_wrote_is_not_read(written: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_plain(written)
