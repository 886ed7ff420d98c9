"""What programs of tests use of numpy to compare numbers (HumanEval+, MBPP+), for a Python that has none; of lists, not of arrays."""

from __future__ import annotations

import importlib.util
import math
import sys

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from typing import Any


def stand_in_for_numpy() -> None:
    """Makes `import numpy` bring this much where it would bring nothing."""
    if importlib.util.find_spec("numpy") is not None:
        return
    numpy, testing = type(sys)("numpy"), type(sys)("numpy.testing")
    testing.__dict__.update(assert_allclose=assert_allclose)
    numpy.__dict__.update(
        allclose=allclose,
        isclose=isclose,
        testing=testing,
        ndarray=type("ndarray", (), {}),
        float32=type("float32", (float,), {}),
        float64=type("float64", (float,), {}),
        inf=math.inf,
        nan=math.nan,
    )
    sys.modules.update({"numpy": numpy, "numpy.testing": testing})


def allclose(found: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all numbers of lists in lists are near those at the same place, or near the one number.

    Raises:
        ValueError: the lists differ in length.
        TypeError: something in them is no number.
    """
    if isinstance(found, (list, tuple)) or isinstance(wanted, (list, tuple)):
        left = found if isinstance(found, (list, tuple)) else [found] * len(wanted)
        right = wanted if isinstance(wanted, (list, tuple)) else [wanted] * len(found)
        if len(left) != len(right) and 1 not in (len(left), len(right)):
            raise ValueError("operands could not be broadcast together")
        longest = max(len(left), len(right)) if left and right else 0
        return all(allclose(left[n % len(left)], right[n % len(right)], rtol, atol, equal_nan) for n in range(longest))
    return isclose(found, wanted, rtol, atol, equal_nan)


def isclose(found: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Of two numbers."""
    for number in (found, wanted):
        if not isinstance(number, (int, float, complex)):
            raise TypeError("no number: " + type(number).__name__)
    if found == wanted:
        return True
    if found != found or wanted != wanted:
        return equal_nan and found != found and wanted != wanted
    return bool(abs(wanted) != math.inf and abs(found - wanted) <= atol + rtol * abs(wanted))


def assert_allclose(found: Any, wanted: Any, rtol: float = 1e-7, atol: float = 0, equal_nan: bool = True) -> None:
    assert allclose(found, wanted, rtol, atol, equal_nan), "the numbers differ"
