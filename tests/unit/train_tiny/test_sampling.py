"""The distributions that the tiny model's engine draws from and tells of; no torch in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Sampling
from workers.llm.tiny.sampling import Floats, chosen, distributions, draw, is_plain, log_softmax

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0])


def test_draws_come_as_often_as_they_are_likely() -> None:
    log_probabilities = log_softmax(LOGITS)
    uniform = (np.arange(10_000) + 0.5) / 10_000

    drawn = draw(np.tile(log_probabilities, (10_000, 1)), uniform)

    shares = np.bincount(drawn, minlength=5) / 10_000
    assert shares == pytest.approx(np.exp(log_probabilities), abs=2e-4)


def test_a_number_next_to_one_still_draws_a_token_that_can_be_drawn() -> None:
    """The sum of probabilities may end below 1, and tokens at the end of the vocabulary may have none."""
    log_probabilities = np.array([[np.log(0.5), np.log(0.5), -np.inf]])

    assert draw(log_probabilities, np.array([1 - 2**-53])).tolist() == [1]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), [0, 1]),
        (Sampling(top_p=0.6), [0, 1]),  # the first alone has 0.56
        (Sampling(top_p=0.5), [0]),
        (Sampling(min_p=0.2), [0, 1, 2]),
        (Sampling(top_k=1, min_p=0.9, top_p=0.01), [0]),
        (Sampling(temperature=0.0, top_k=1), [0, 1, 2, 3, 4]),  # greedy takes the first, and tells of all
    ],
)
def test_processed_is_what_is_left_and_sums_to_one(sampling: Sampling, kept: list[int]) -> None:
    scaled, processed = distributions(LOGITS, sampling, (), (), ())

    assert np.flatnonzero(np.isfinite(processed)).tolist() == kept
    assert np.exp(processed).sum() == pytest.approx(1.0)
    assert scaled == pytest.approx(log_softmax(LOGITS))
    assert processed[kept] - processed[kept[0]] == pytest.approx(LOGITS[kept] - LOGITS[kept[0]])


def test_allowed_tokens_leave_no_other() -> None:
    _, processed = distributions(LOGITS, Sampling(), (), (), (3, 4))

    assert np.flatnonzero(np.isfinite(processed)).tolist() == [3, 4]


def test_penalties_lower_what_was_said_and_repetition_what_was_read_too() -> None:
    scaled, _ = distributions(LOGITS, Sampling(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0), (0,), (1, 1, 4), ())

    bent = np.array([2.0 / 2, 1.0 / 2 - 0.5 - 0.5, 0.5, 0.0, -1.0 * 2 - 0.5 - 0.25])
    assert scaled == pytest.approx(log_softmax(bent))


def test_what_is_told_is_by_the_mode() -> None:
    scaled, processed = distributions(LOGITS, Sampling(temperature=0.5, top_k=2), (), (), ())

    assert chosen("raw", LOGITS, scaled, processed) == pytest.approx(log_softmax(LOGITS))
    assert chosen("scaled", LOGITS, scaled, processed) == pytest.approx(log_softmax(LOGITS / 0.5))
    assert chosen("processed", LOGITS, scaled, processed)[2] == -np.inf


@given(
    logits=st.lists(st.floats(-30, 30), min_size=2, max_size=12),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_every_request_leaves_something_to_draw(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    values: Floats = np.array(logits)

    _, processed = distributions(values, sampling, (), (), ())

    assert np.exp(processed).sum() == pytest.approx(1.0)
    assert np.isfinite(processed[draw(processed[None], np.array([0.999]))[0]])
    if is_plain(sampling, ()):
        assert processed == pytest.approx(log_softmax(values / temperature))
