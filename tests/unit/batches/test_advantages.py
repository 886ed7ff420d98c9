"""Advantages: by hand, by what TRL's and verl's own functions made (`peers.json`), and in the corners where those give no number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from trainer_client.batches.advantages import GRPO, Advantage, LeaveOneOut, Overlong
from trainer_client.batches.loss_weights import LossMean, LossWeights, StepTotals

PEERS: dict[str, Any] = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
WAYS: dict[str, Advantage] = {
    "verl_grpo": GRPO(std=True, ddof=1, eps=1e-6),
    "verl_grpo_without_std": GRPO(std=False),
    "verl_rloo": LeaveOneOut(),
    "trl_group": GRPO(std=True, ddof=1, eps=1e-4),
}


@pytest.mark.parametrize("peer", WAYS)
def test_they_are_those_of_the_trainers_own_functions(peer: str) -> None:
    for case in PEERS["advantages"]:
        found = WAYS[peer].of_group(np.array(case["rewards"]))

        np.testing.assert_allclose(found, case[peer], rtol=1e-7, atol=1e-9)  # TRL counts in float32


def test_they_are_those_of_the_formulas() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.0])

    np.testing.assert_allclose(GRPO(std=False).of_group(rewards), [0.75, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(GRPO(eps=0.0).of_group(rewards), [1.5, -0.5, -0.5, -0.5])
    np.testing.assert_allclose(GRPO(ddof=0, eps=0.0).of_group(rewards), np.array([3.0, -1.0, -1.0, -1.0]) / np.sqrt(3))
    np.testing.assert_allclose(LeaveOneOut().of_group(rewards), [1.0, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("advantage", [GRPO(), GRPO(ddof=0), GRPO(std=False), GRPO(eps=0.0), LeaveOneOut()], ids=repr)
@given(rewards=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
@example(rewards=[0.2, 0.2, 0.2])  # their mean is not 0.2
def test_they_are_numbers_that_cancel_out(advantage: Advantage, rewards: list[float]) -> None:
    """verl gives the only member of a group its bare reward, and a group without spread has a deviation of 0."""
    found = advantage.of_group(np.array(rewards))

    assert np.isfinite(found).all()
    assert abs(found.sum()) <= 1e-6 * max(1.0, np.abs(found).max()) * len(rewards)
    if len(set(rewards)) == 1:
        np.testing.assert_allclose(found, 0.0, atol=1e-6)


def test_a_penalty_for_length_falls_in_a_line() -> None:
    overlong = Overlong(max_tokens=100, margin=20, penalty=0.5)

    shaped = overlong.shape(np.ones(5), np.array([10, 80, 90, 100, 300]))

    np.testing.assert_allclose(shaped, [1.0, 1.0, 0.75, 0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GRPO(ddof=2), "ddof"),
        (lambda: GRPO(eps=-1.0), "eps"),
        (lambda: Overlong(max_tokens=10, margin=11), "margin"),
        (lambda: Overlong(max_tokens=10, margin=5, penalty=0.0), "penalty"),
        (lambda: LossWeights("token-mean", StepTotals(1, 1)), "loss"),  # type: ignore[arg-type]
        (lambda: LossWeights("fixed_length", StepTotals(1, 1)), "length"),
        (lambda: LossWeights("token_mean", StepTotals(1, 1), length=5), "length"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make()

    assert refused.value.field == field


@pytest.mark.parametrize("mean", ["token_mean", "trajectory_mean", "fixed_length"])
def test_sums_with_weights_are_the_means_of_verl(mean: LossMean) -> None:
    """One row a trajectory, as verl has it; one that is masked as a whole is in no denominator."""
    for case in PEERS["losses"]:
        loss, mask = np.array(case["loss"]), np.array(case["mask"])
        totals = StepTotals(int(mask.sum()), int((mask.sum(axis=1) > 0).sum()))
        weights = LossWeights(mean, totals, length=case["length"] if mean == "fixed_length" else 0)

        found = sum((row * kept).sum() * weights.of(int(kept.sum())) for row, kept in zip(loss, mask, strict=True))

        np.testing.assert_allclose(found, case[mean], rtol=1e-7)


def test_a_trajectory_of_several_rows_weighs_as_much_as_one_of_one() -> None:
    """Two trajectories, one of 3 + 5 loss tokens in two rows: a mean over rows would count it twice."""
    weights = LossWeights("trajectory_mean", StepTotals(loss_tokens=10, trajectories=2))

    assert weights.of(8) * 8 == pytest.approx(0.5)
    assert weights.of(2) * 2 == pytest.approx(0.5)
    assert weights.of(0) == 0.0
