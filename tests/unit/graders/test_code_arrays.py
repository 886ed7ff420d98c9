"""What stands in for numpy beside programs of tests says what numpy says, of the values that such tests compare."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workers.graders.code.inside.arrays import allclose, assert_allclose

PAIRS = [
    (1.0, 1.0 + 1e-9),
    (1.0, 1.1),
    (1, True),
    (0, 1e-7),
    (math.inf, math.inf),
    (math.inf, -math.inf),
    (1e308, math.inf),
    (math.nan, math.nan),
    (1 + 1j, 1 + 1.0000001j),
    ([], []),
    ([1, 2.5], (1, 2.5 + 1e-8)),
    ([1, 2], [2, 1]),
    ([[1, 2], [3, 4]], [[1, 2], [3, 4.1]]),
    ([1, 1, 1], 1),
    (2, [2, 2.1]),
    ([5], [5, 5]),
]


@pytest.mark.parametrize(("found", "wanted"), PAIRS)
@pytest.mark.parametrize("atol", [0, 1e-6, 0.2])
def test_numbers_are_near_where_numpy_says_so(found: object, wanted: object, atol: float) -> None:
    assert allclose(found, wanted, rtol=1e-7, atol=atol) is bool(np.allclose(found, wanted, rtol=1e-7, atol=atol))  # type: ignore[arg-type]


@pytest.mark.parametrize(("found", "wanted"), [([1, 2], [1, 2, 3]), ("a", 1.0), (None, 1), ({1: 2}, 1), ({1}, [1])])
def test_what_numpy_does_not_compare_is_not_compared(found: object, wanted: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        np.allclose(found, wanted)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        allclose(found, wanted)


def test_an_assertion_of_numbers_that_differ_fails() -> None:
    assert_allclose([math.nan, 1.0], [math.nan, 1.0])
    with pytest.raises(AssertionError):
        assert_allclose([1.0], [1.1], atol=1e-3)
