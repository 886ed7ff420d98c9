"""Numbers of a validation: unbiased, and honest about what they are of."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from pipeline.messages import JobResult, Outcome
from pipeline.validation_request import ValidationRequest
from tests.unit.trainer_client.run_records import a_job_record
from trainer_client.validation_numbers import Estimate, interval_of, mean_of, pass_at_k, score_of, why_invalid


def a_record(outcome: Outcome = Outcome.OK, reward: float | None = 1.0, components: dict[str, float] | None = None) -> JobResult:
    return a_job_record("r.v1-0.0.0", outcome=outcome, reason="why", reward=reward, components=components or {})


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_all_draws_of_k_in_which_one_passes(n: int, data: st.DataObject) -> None:
    """The definition, counted out: of all ways to choose k of the n samples."""
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    passed = [True] * c + [False] * (n - c)
    draws = list(itertools.combinations(passed, k))

    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 1))
def test_pass_at_k_is_unbiased(n: int, k: int, p: float) -> None:
    """Over all outcomes of n samples that pass with chance p its mean is the chance that one of k passes."""
    if k > n:
        assert pass_at_k(n, 0, k) is None
        return
    mean = math.fsum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * (pass_at_k(n, c, k) or 0.0) for c in range(n + 1))

    assert mean == pytest.approx(1 - (1 - p) ** k)


def test_pass_at_k_of_many_samples_is_exact() -> None:
    assert pass_at_k(1024, 1, 512) == 0.5
    assert pass_at_k(1024, 0, 1) == 0.0
    assert pass_at_k(1024, 1024, 1) == 1.0


def test_an_estimate_says_what_it_is_of() -> None:
    estimate = mean_of([1.0, None, 0.5], valid=3, asked=6)

    assert estimate == Estimate(0.75, 3, 6, 2, 3)
    assert str(estimate) == "0.7500 (3 of 6 members valid, 2 of 3 prompts)"
    assert float(estimate) == 0.75
    assert not estimate.is_whole
    assert mean_of([1.0, 0.0], valid=4, asked=4).is_whole


def test_an_estimate_of_nothing_is_no_number() -> None:
    nothing = mean_of([None, None], valid=0, asked=2)

    assert nothing.value is None
    assert math.isnan(float(nothing))
    assert str(nothing) == "none (0 of 2 members valid, 0 of 2 prompts)"


@pytest.mark.parametrize(
    ("record", "score"),
    [
        (a_record(reward=0.5), 0.5),
        (a_record(reward=0.5, components={"score": 1.0}), 1.0),
        (a_record(Outcome.MODEL_FAILURE, None), 0.0),
        (a_record(Outcome.MODEL_FAILURE, 0.25), 0.25),
        (a_record(Outcome.INFRA_FAILURE, None), None),
        (a_record(Outcome.CANCELLED, None), None),
        (a_record(Outcome.EXPIRED, 1.0), None),
        (a_record(reward=None), None),
        (a_record(reward=math.nan), None),
        (a_record(reward=math.nan, components={"score": 1.0}), None),
    ],
)
def test_a_fault_of_infrastructure_is_no_score_and_a_failure_of_the_model_is_one(record: JobResult, score: float | None) -> None:
    """Promise 7."""
    assert score_of(record, "score") == score


def test_another_part_of_the_reward_can_be_averaged() -> None:
    record = a_record(components={"score": 1.0, "format": 0.5})

    assert score_of(record, "format") == 0.5
    assert score_of(record, "style") is None
    assert score_of(a_record(Outcome.MODEL_FAILURE, None), "style") == 0.0
    assert why_invalid(record, "style") == "no usable style"
    assert why_invalid(a_record(Outcome.INFRA_FAILURE, None), "style") == "infra_failure: why"


class Rows:
    """A data set that is no sequence."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> dict[str, object]:
        return {"question": f"{at}?"}


def test_prompts_come_from_anything_with_rows() -> None:
    rows = [{"question": "0?"}, {"question": "1?"}]
    for given_rows in (rows, tuple(rows), iter(rows), Rows()):
        assert [dict(row) for row in ValidationRequest.parse({"task": "math", "prompts": given_rows}).prompts] == rows


@pytest.mark.parametrize("prompts", ["text", {"question": "?"}, 7, [], ["text"], [{}], [{"question": ""}], [{1: 2}]])
def test_what_is_no_data_set_is_refused_before_anything_is_sent(prompts: object) -> None:
    with pytest.raises(InvalidRequest, match="prompts"):
        ValidationRequest.parse({"task": "math", "prompts": prompts})


def test_prompts_are_named_by_what_is_in_them_wherever_they_stand() -> None:
    a, b = {"question": "a", "answer": 1}, {"question": "b"}
    one = ValidationRequest(task="math", prompts=[a, b, a])
    other = ValidationRequest(task="math", prompts=[b, {"answer": 1, "question": "a"}])

    first, second, again = one.prompt_names()

    assert other.prompt_names() == [second, first]
    assert again not in (first, second)
    assert len(set(one.prompt_names())) == 3


def test_a_request_for_other_samples_has_another_digest() -> None:
    base = {"task": "math", "prompts": [{"q": 1}], "n": 2}

    same = ValidationRequest.parse({**base, "threshold": 0.5, "max_redraws": 7}).digest()
    others = [
        ValidationRequest.parse({**base, **change}).digest()
        for change in ({"n": 3}, {"prompts": [{"q": 2}]}, {"run_seed": 1}, {"version": "pinned"}, {"sampling": {"temperature": 0.5}})
    ]

    assert same == ValidationRequest.parse(base).digest()
    assert len({same, *others}) == 6


@pytest.mark.parametrize(("alike", "rate"), [(0.3, 0.5), (3.0, 0.8), (0.5, 0.95), (30.0, 0.1)])
def test_an_interval_holds_the_true_mean_as_often_as_it_says(alike: float, rate: float) -> None:
    """Prompts have pass rates of their own, members follow them: drawn again and again, with few prompts (the hardest), 95 % hold it.

    An interval that takes the members for independent holds it in 55 % of the cases, at the first of these.
    """
    rng, prompts, n, times = random.Random(5), 40, 8, 600
    held = 0
    for _ in range(times):
        rates = [rng.betavariate(alike * rate, alike * (1 - rate)) for _ in range(prompts)]
        values = [statistics.fmean(rng.random() < p for _ in range(n)) for p in rates]
        interval = interval_of(values, prompts * n)
        assert interval is not None
        held += interval[0] <= rate <= interval[1]

    assert held / times >= 0.93


def test_an_interval_has_a_width_where_all_pass_and_none_where_nothing_is_known() -> None:
    assert interval_of([], 0) is None
    low, high = interval_of([1.0] * 20, 160) or (0, 0)
    assert (0.8 < low < 0.9, high) == (True, 1.0)
    assert interval_of([0.5], 1) == pytest.approx((0.055, 0.945), abs=1e-3)  # one prompt says next to nothing
    assert interval_of([-1.0], 4) is None
    low, high = interval_of([-1.0, 3.0, 1.0], 3) or (0, 0)
    assert low < 1 < high


def test_an_estimate_has_its_interval() -> None:
    estimate = mean_of([1.0, 0.0, None, 1.0], valid=6, asked=8)

    assert estimate.interval == interval_of([1.0, 0.0, 1.0], 6)
