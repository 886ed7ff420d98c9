from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from pipeline.supervisor.step_spec import CancelRule, StepSpec


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
    )
)
def test_a_specification_comes_back_from_the_fields_of_its_step(spec: StepSpec) -> None:
    assert StepSpec.from_fields({**spec.fields(), "tpl": "x", "a_field_of_tomorrow": "1"}) == spec


def test_fields_that_an_older_writer_left_out_take_their_default() -> None:
    assert StepSpec.from_fields({"target": "8", "n": "4"}) == StepSpec(target=8, n=4)


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
    ],
)
def test_a_value_that_makes_no_sense_is_named(field: str, value: float) -> None:
    asked: dict[str, float] = {"target": 8, "n": 8, "reward_high": 1.0, field: value}

    with pytest.raises(InvalidRequest) as refused:
        StepSpec(**asked)  # type: ignore[arg-type]  # wrong values are the point

    assert refused.value.field == field
