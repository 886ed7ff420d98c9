"""Distances in numbers, and which of them are too far."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workers.llm.logprob_distance import TOLERANCES, Distances, Tolerance, beyond, summary_of

BF16 = TOLERANCES["bf16"]


def of(values: np.ndarray, first: np.ndarray | None = None, last: np.ndarray | None = None) -> Distances:
    """Distances, those of first and last tokens none unless given."""
    nothing = np.zeros(0)
    return Distances(all_D=values, first_D=nothing if first is None else first, last_D=nothing if last is None else last)


def noise(n: int, scale: float = 0.01) -> np.ndarray:
    """As two computations in bf16 differ."""
    return np.random.default_rng(5).normal(0.0, scale, n)


def test_noise_of_bf16_is_within_its_tolerance_and_beyond_that_of_fp32() -> None:
    assert beyond(of(noise(5000), noise(100), noise(100)), BF16) == []
    assert any("max |d|" in line for line in beyond(of(noise(5000)), TOLERANCES["fp32"]))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (of(noise(5000, 0.1)), "mean |d|: expected at most 0.02 nats"),
        (of(np.concatenate([noise(5000), [1.0] * 20])), "p99.9 of |d|: expected at most 0.2 nats, found 1 over 5020 tokens"),
        (of(noise(5000) + 0.01), "signed mean: expected within ±0.003 nats, found +0.0"),
        (of(noise(5000), first=np.full(50, 0.3)), "mean |d| of the first tokens of turns"),
        (of(noise(5000), last=np.full(50, -0.3)), "p99.9 of |d| of the last tokens of turns"),
        (of(np.concatenate([noise(100), [math.inf]])), "p99.9 of |d|"),
        (of(np.array([math.inf])), "mean |d|: expected at most 0.02 nats, found inf"),
    ],
)
def test_each_way_to_be_too_far_is_told(found: Distances, told: str) -> None:
    assert any(told in line for line in beyond(found, BF16)), beyond(found, BF16)


def test_a_signed_mean_of_few_tokens_is_chance() -> None:
    few = of(np.array([0.02, -0.005, 0.01, -0.001]))

    assert abs(summary_of(few.all_D).signed_mean) > BF16.signed_mean
    assert beyond(few, BF16) == []


def test_tokens_without_probability_are_counted_and_kept_out_of_the_means() -> None:
    found = summary_of(np.array([0.1, -0.1, math.inf]))

    assert (found.tokens, found.impossible) == (3, 1)
    assert found.mean_abs == pytest.approx(0.1)
    assert found.signed_mean == pytest.approx(0.0)
    assert found.p999_abs == found.max_abs == math.inf


def test_distances_add_up_and_none_have_no_numbers() -> None:
    total = of(np.array([0.1])) + of(np.array([0.3]), first=np.array([0.3])) + Distances.none()

    assert total.all_D.tolist() == [0.1, 0.3]
    assert total.first_D.tolist() == [0.3]
    assert summary_of(Distances.none().all_D).max_abs == 0.0
    assert beyond(Distances.none(), Tolerance(mean_abs=0.0, p999_abs=0.0, signed_mean=0.0)) == []
