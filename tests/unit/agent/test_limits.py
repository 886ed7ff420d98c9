"""Decisions on what ends a trajectory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Limits, Sampling, StopReason
from workers.agent import ActiveTime, Budget, StuckDetector, plan_call


def plan(**changes: int) -> Budget | StopReason:
    """A plan in a context of 8192, one thing changed."""
    given = {"turns": 0, "prompt_tokens": 100, "sampled_tokens": 0, "sampled_in_turn": 0, "max_model_len": 8192, **changes}
    return plan_call(Limits(max_context_tokens=8192), Sampling(max_tokens=400), **given)


def test_a_prompt_beyond_the_context_ends_the_trajectory() -> None:
    assert plan(prompt_tokens=8195) is StopReason.CONTEXT
    assert plan(prompt_tokens=8192) is StopReason.CONTEXT


def test_one_place_left_gives_one_token() -> None:
    assert plan(prompt_tokens=8191) == Budget(1, StopReason.CONTEXT)


def test_a_turn_has_its_own_bound_over_all_its_calls() -> None:
    assert plan() == Budget(400, StopReason.TOKENS)
    assert plan(sampled_in_turn=390) == Budget(10, StopReason.TOKENS)
    assert plan(sampled_in_turn=400) is StopReason.TOKENS


def test_the_server_s_context_counts_when_it_is_the_smaller_one() -> None:
    assert plan(max_model_len=150) == Budget(50, StopReason.CONTEXT)


@given(st.integers(0, 20), st.integers(1, 9000), st.integers(0, 20_000), st.integers(0, 500))
def test_a_budget_never_breaks_a_bound(turns: int, prompt_tokens: int, sampled_tokens: int, sampled_in_turn: int) -> None:
    found = plan(turns=turns, prompt_tokens=prompt_tokens, sampled_tokens=sampled_tokens, sampled_in_turn=sampled_in_turn)

    if isinstance(found, Budget):
        assert found.max_tokens >= 1
        assert prompt_tokens + found.max_tokens <= 8192
        assert sampled_tokens + found.max_tokens <= Limits().max_sampled_tokens
        assert sampled_in_turn + found.max_tokens <= 400
        assert turns < Limits().max_turns


def test_time_spent_waiting_does_not_count() -> None:
    now = [0.0]
    active = ActiveTime(10.0, lambda: now[0])

    now[0] = 3.0
    with active.waiting():
        now[0] = 50.0
        with active.waiting():
            now[0] = 60.0
        assert active.left_s == 7.0
    now[0] = 65.0

    assert active.left_s == 2.0


def test_three_equal_turns_are_patience_four_are_not() -> None:
    stuck = StuckDetector()

    assert [stuck.is_stuck_after("same") for _ in range(4)] == [False, False, False, True]


def test_a_change_starts_the_count_anew() -> None:
    stuck = StuckDetector()

    assert not any(stuck.is_stuck_after(turn) for turn in ["a", "a", "a", "b", "a", "a", "a", "c", "a", "b", "a", "b", "a"])
