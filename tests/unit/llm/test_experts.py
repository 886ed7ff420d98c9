"""Experts as servers send them: what does not fit the call or the model is not believed, and nothing in it is unpickled."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.engines import InvalidResponse
from pipeline.engines.errors import Unsupported
from pipeline.messages import RoutedExperts, Sampling
from workers.llm import GenRequest
from workers.llm.experts import from_int32, from_npy
from workers.llm.scripted.experts import made_up_experts
from workers.llm.wire import Answer

MODEL = RoutedExperts(layers=3, top_k=2, experts=300)
PROMPT, OUTPUT = [7, 8, 9], [5, 6]
REQUEST = GenRequest(request_id="j", prompt_ids=PROMPT, sampling=Sampling(), max_tokens=9, seed=1, experts=MODEL)
ANSWER = Answer(
    output_ids=OUTPUT,
    logprobs=[-1.0, -1.0],
    finish="stop",
    stop_reason=None,
    spans=None,
    cached_tokens=None,
    request_id="j",
    shape="token_id",
)
ROWS = made_up_experts([*PROMPT, *OUTPUT], MODEL)


def npy(array: NDArray[Any], *, allow_pickle: bool = False) -> str:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=allow_pickle)
    return base64.b64encode(content.getvalue()).decode()


def int32(array: NDArray[Any]) -> str:
    return base64.b64encode(array.astype("<i4").tobytes()).decode()


@pytest.mark.parametrize("dtype", ["uint16", "int32", ">i4", "int64"])
def test_rows_are_one_less_than_tokens_and_come_in_as_many_bits_as_the_model_takes(dtype: str) -> None:
    found = from_npy(npy(ROWS.astype(dtype)), REQUEST, ANSWER, "s")

    assert found is not None
    assert (found.dtype.name, found.shape) == ("uint16", (4, 3, 2))
    assert np.array_equal(found, ROWS)


def test_bits_hang_on_the_model_and_not_on_what_one_sample_met() -> None:
    """Of 300 experts a sample may meet the first 256 only; with 8 bits for that one a batch would have two dtypes."""
    low = np.zeros_like(ROWS)
    few = replace(REQUEST, experts=replace(MODEL, experts=256))

    wide, narrow = from_npy(npy(low), REQUEST, ANSWER, "s"), from_npy(npy(low + 255), few, ANSWER, "s")

    assert wide is not None
    assert narrow is not None
    assert (wide.dtype.name, narrow.dtype.name, int(narrow.max())) == ("uint16", "uint8", 255)


@pytest.mark.parametrize("start", [0, 2])
def test_a_server_that_sends_all_and_one_that_sends_what_is_wanted_say_the_same(start: int) -> None:
    request = replace(REQUEST, experts_from=start)

    for sent in (ROWS, ROWS[start:]):
        for found in (from_npy(npy(sent), request, ANSWER, "s"), from_int32(int32(sent), request, ANSWER, "s")):
            assert found is not None
            assert np.array_equal(found, ROWS[start:])


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (npy(np.concatenate([ROWS, ROWS[:1]])), "one less than tokens"),
        (npy(ROWS[:-1]), "one less than tokens"),
        (npy(ROWS[:, :2]), r"expected whole numbers \[N, 3, 2\]"),
        (npy(ROWS.reshape(4, 6)), "expected whole numbers"),
        (npy(ROWS.astype("float32")), "expected whole numbers"),
        (npy(np.full_like(ROWS, 300)), "from 0 to 299"),
        (npy(ROWS.astype("int32") - 2000), "from 0 to 299"),
        (npy(np.array([{"a": 1}], dtype=object), allow_pickle=True), "no array can be read"),
        (base64.b64encode(b"\x93NUMPY\x01\x00\x10\x00{'descr': '").decode(), "no array can be read"),
        (
            base64.b64encode(
                b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<u2', 'fortran_order': False, 'shape': (4, 3, 2000000000000), }".ljust(117) + b"\n"
            ).decode(),
            "no array can be read",
        ),
        (npy(ROWS)[:-8], "no array can be read"),
        (npy(ROWS) + "!", "no base64"),
        ([[[1, 2]]], "expected base64, got list"),
    ],
)
def test_what_does_not_fit_is_not_believed(sent: object, why: str) -> None:
    with pytest.raises(InvalidResponse, match=why) as caught:
        from_npy(sent, REQUEST, ANSWER, "s")

    assert caught.value.check == "routed_experts"


def test_numbers_without_a_shape_are_held_to_the_model() -> None:
    with pytest.raises(InvalidResponse, match="no rows of 3 layers and 2 experts"):
        from_int32(base64.b64encode(bytes(4 * 13)).decode(), REQUEST, ANSWER, "s")
    with pytest.raises(InvalidResponse, match="from 0 to 299"):
        from_int32(int32(ROWS.astype("int32") - 1000), REQUEST, ANSWER, "s")


def test_a_server_that_does_not_say_is_an_error_that_another_try_does_not_help() -> None:
    with pytest.raises(Unsupported, match="--enable-return-routed-experts") as caught:
        from_npy(None, REQUEST, ANSWER, "http://s")

    assert not caught.value.retryable


def test_nothing_is_said_where_nobody_asked_nothing_was_sampled_or_the_call_was_aborted() -> None:
    aborted = replace(ANSWER, output_ids=[], logprobs=[], finish="abort")

    assert from_npy(None, REQUEST, replace(ANSWER, finish="abort"), "s") is None
    assert from_npy(npy(ROWS), replace(REQUEST, experts=None), ANSWER, "s") is None
    assert from_npy(None, REQUEST, aborted, "s") is None
