from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from pipeline.messages import StopReason
from pipeline.supervisor.loss_policy import Loss, loss_of
from pipeline.supervisor.step_spec import CancelRule, OnStale, StepSpec, Surplus


@given(
    st.builds(
        StepSpec,
        target=st.integers(1, 1000),
        n=st.integers(4, 64),
        over=st.floats(1, 10),
        eps=st.floats(0, 1),
        component=st.text("abc", min_size=1),
        cancel=st.sampled_from(CancelRule),
        min_members=st.integers(0, 4),
        max_redraws=st.integers(0, 9),
        reward_low=st.floats(-10, 0),
        reward_high=st.floats(1, 10),
        version=st.just("1.4"),
        policy_args=st.dictionaries(st.text("abc", min_size=1), st.floats(-1, 1)),
        surplus=st.sampled_from(Surplus),
        max_staleness=st.integers(0, 9),
        on_stale=st.sampled_from(OnStale),
        group_deadline_s=st.floats(0, 1e6),
        loss=st.dictionaries(st.sampled_from(StopReason), st.sampled_from(Loss)),
    )
)
def test_a_specification_comes_back_from_the_fields_of_its_step(spec: StepSpec) -> None:
    assert StepSpec.from_fields({**spec.fields(), "tpl": "x", "a_field_of_tomorrow": "1"}) == spec


def test_fields_that_an_older_writer_left_out_take_their_default() -> None:
    assert StepSpec.from_fields({"target": "8", "n": "4"}) == StepSpec(target=8, n=4)


def test_what_was_cut_off_is_masked_unless_the_step_says_otherwise() -> None:
    default, other = StepSpec(target=8, n=4), StepSpec(target=8, n=4, loss={})

    assert {stop for stop in StopReason if loss_of(stop, default.loss) is Loss.MASK} == {"tokens", "context", "time"}
    assert all(loss_of(stop, other.loss) is Loss.TRAIN for stop in StopReason)
    assert StepSpec.from_fields(other.fields()) == other
    assert loss_of("a_reason_of_tomorrow", default.loss) is Loss.TRAIN


@pytest.mark.parametrize(("n", "fewest"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (10, 8)])
def test_three_quarters_of_a_group_are_rounded_up(n: int, fewest: int) -> None:
    assert StepSpec(target=1, n=n).fewest == fewest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", 0),
        ("n", 0),
        ("n", 2000),
        ("over", 0.5),
        ("over", math.nan),
        ("eps", -1.0),
        ("min_members", 9),
        ("max_redraws", -1),
        ("reward_low", 2.0),
        ("max_staleness", -1),
        ("group_deadline_s", -1.0),
        ("group_deadline_s", math.nan),
    ],
)
def test_a_value_that_makes_no_sense_is_named(field: str, value: float) -> None:
    asked: dict[str, float] = {"target": 8, "n": 8, "reward_high": 1.0, field: value}

    with pytest.raises(InvalidRequest) as refused:
        StepSpec(**asked)  # type: ignore[arg-type]  # wrong values are the point

    assert refused.value.field == field
