"""The monitors: lengths that were cut say at least so much, warnings need size and certainty, shortages have one reason at a time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Outcome
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.ledger import is_kept_sample
from pipeline.supervisor.monitors import (
    LENGTH_FIGURES,
    Health,
    Starvation,
    WindowGroup,
    length_bias,
    lengths_text,
    parse_line,
    read_starvation,
    read_window,
)
from pipeline.supervisor.shortage import Shortage, shortage
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.token_fates import OF_VALID, TokenFate, fates
from pipeline.supervisor.views import Basis, Member, OpenStep, RunView


def a_group(
    ended: tuple[int, ...], cut: tuple[int, ...] = (), *, prompt: str = "", verdict: str = "informative", age: int | None = 0
) -> WindowGroup:
    return WindowGroup(verdict=verdict, prompt=prompt or f"p{id(ended)}", age_s=2.0, age_versions=age, ended=ended, cut=cut)


def test_a_member_that_was_cut_says_only_that_it_is_at_least_as_long() -> None:
    """Lengths 1, 2, 3 and one cut at 2: S is 3/4, then (of two at risk after 2, the cut one among them at 2) 1/2, then 0."""
    bias = length_bias([a_group((1, 2, 3), (2,), prompt="a")])

    # area under S: 1·1 + 1·3/4 + 1·(3/4·2/3)
    assert bias.sampled_mean == pytest.approx(1 + 0.75 + 0.5)
    assert bias.judged_mean == 2.0
    assert bias.cut_ratio == pytest.approx(2 / 2.25)


def test_what_is_left_beyond_the_longest_end_is_put_at_the_longest_that_was_seen() -> None:
    bias = length_bias([a_group((1,), (9,), prompt="a")])

    assert bias.sampled_mean == pytest.approx(1 + 0.5 * 8)


def test_a_prompt_that_was_drawn_often_counts_once() -> None:
    """A rule that gives a slow prompt up again and again draws it again and again: its draws must not outweigh the others."""
    once = length_bias([a_group((10, 10), prompt="a"), a_group((2, 2), prompt="b")])
    often = length_bias([a_group((10, 10), prompt="a")] * 3 + [a_group((2, 2), prompt="b")])

    assert often.sampled_mean == pytest.approx(once.sampled_mean) == 6.0


def test_without_cuts_judged_and_sampled_are_the_same() -> None:
    dice = random.Random(5)
    window = [a_group(tuple(dice.randint(1, 900) for _ in range(8)), prompt=f"p{i}") for i in range(64)]

    bias = length_bias(window)

    assert bias.cut_ratio == pytest.approx(1)
    assert bias.cut_tail == pytest.approx(1)
    assert (bias.health, bias.warnings) == (Health.OK, ())


def test_cutting_the_long_ones_is_noticed() -> None:
    """Lengths that pass 400 are cut there: the estimate knows that they are longer, the ended ones do not show it."""
    dice = random.Random(5)
    window = []
    for i in range(64):
        lengths = [dice.randint(1, 900) for _ in range(8)]
        window.append(a_group(tuple(n for n in lengths if n <= 400), tuple(400 for n in lengths if n > 400), prompt=f"p{i}"))

    bias = length_bias(window)

    assert bias.cut_ratio < 0.8
    assert bias.health is Health.WARN
    assert any("select by length" in sentence for sentence in bias.warnings)


def test_what_the_filter_prefers_is_shown_and_no_warning() -> None:
    """All-wrong groups are the longest: trained members are shorter, and nothing is wrong with it."""
    window = [a_group((10,) * 8, prompt=f"t{i}") for i in range(40)]
    window += [a_group((40,) * 8, prompt=f"f{i}", verdict="filtered") for i in range(40)]

    bias = length_bias(window)

    assert bias.filter_ratio == pytest.approx(10 / 25)
    assert bias.filter_tail == 0.0
    assert bias.health is Health.OK


def test_chance_is_no_warning_and_too_little_is_no_verdict() -> None:
    few = [a_group((1, 900), (300,), prompt=f"p{i}") for i in range(20)]

    assert length_bias(few).health is Health.UNKNOWN
    assert length_bias([]).figures() == dict.fromkeys(LENGTH_FIGURES, 0.0)


def test_many_at_the_limit_are_a_tail_that_can_be_compared() -> None:
    """A fifth of all hit the limit of tokens: the 95th percentile is the limit itself, and a tenth more of them would be seen."""
    window = [a_group((100,) * 8 + (4096,) * 2, prompt=f"p{i}") for i in range(64)]

    bias = length_bias(window)

    assert (bias.tail_length, bias.health) == (4096, Health.OK)
    assert bias.cut_tail == pytest.approx(1.0)


def test_a_group_without_a_known_version_has_no_age_in_versions() -> None:
    bias = length_bias([a_group((1,), age=3, prompt="a"), a_group((1,), age=None, prompt="b"), a_group((1,), verdict="filtered", age=1)])

    assert (bias.trained_age_versions, bias.judged_age_versions) == (3.0, 2.0)


@given(st.lists(st.tuples(st.lists(st.integers(0, 99_999)), st.lists(st.integers(0, 99_999)))))
def test_a_line_of_the_window_is_read_as_it_was_written(groups: list[tuple[list[int], list[int]]]) -> None:
    lines = [f"filtered|e0-1|1500|2|{lengths_text(ended, cut)}".encode() for ended, cut in groups]

    assert [(list(group.ended), list(group.cut)) for group in read_window(lines)] == groups
    length_bias(read_window(lines))  # and whatever stands there has figures


def test_a_line_of_another_version_is_left_out() -> None:
    assert read_window([b"who|knows", b"filtered|p|1|x|1", b"informative|p|1000||1,c2"]) == [parse_line("informative|p|1000||1,c2")]


# ---- starvation


def test_the_share_of_a_step_is_over_the_time_in_which_it_was_the_oldest() -> None:
    found = read_starvation({"short.prompts": "2000", "short.paused": "0", "target": "4"}, watched_ms=10_000)

    assert (found.short_s, found.share, found.health) == ({"prompts": 2.0}, 0.2, Health.WARN)
    assert Starvation(watched_s=10.0, short_s={"prompts": 0.5}).health is Health.OK
    assert Starvation(watched_s=0.0, short_s={}).health is Health.UNKNOWN


OUTSIDE = OpenStep(index=0, spec=StepSpec(target=4, n=2, over=1.0, outside=True), accepted=0)
VIEW = RunView(
    basis=Basis("r", 1, 1), steps=(OpenStep(index=0, spec=StepSpec(target=4, n=2, over=1.0), accepted=0),), flying=2, reserve=0, judged=99,
    informative=99,
)  # fmt: skip


@pytest.mark.parametrize(
    ("view", "refused", "idle", "expected"),
    [
        (VIEW, False, False, Shortage.PROMPTS),
        (replace(VIEW, prompts_ended=True), False, False, None),
        (replace(VIEW, flying=99), False, False, None),
        (replace(VIEW, reserve=50), True, False, Shortage.QUEUE_FULL),
        (replace(VIEW, reserve=50, steps=(OUTSIDE,), now_ms=90_000), False, False, Shortage.TRAINER),
        (replace(VIEW, reserve=50), False, False, None),
        (replace(VIEW, flying=99), False, True, Shortage.NO_WORKERS),
        (replace(VIEW, flying=0), False, True, Shortage.PROMPTS),
        (replace(VIEW, paused=True, flying=99), True, True, Shortage.PAUSED),
        (replace(VIEW, paused=True, steps=()), True, True, None),
        (replace(VIEW, cancelled_for="user"), False, False, None),
        (replace(VIEW, is_open=False), False, False, None),
    ],
)
def test_one_reason_at_a_time(view: RunView, refused: bool, idle: bool, expected: Shortage | None) -> None:
    assert shortage(view, refused=refused, stage_is_idle=idle) is expected


# ---- tokens


def a_member(outcome: Outcome = Outcome.OK, *, stop: str = "finished", sampled: int = 0, more: int = 0) -> Member:
    return Member(outcome=outcome, reward=1.0, components={}, stop=stop, sampled_tokens=sampled, more_tokens=more)


def test_each_verdict_has_a_fate_for_its_valid_members() -> None:
    assert set(OF_VALID) == {verdict.value for verdict in Verdict}


def test_a_report_that_came_after_the_cancel_is_late_and_a_cut_is_cancelled() -> None:
    members = {0: a_member(Outcome.CANCELLED, sampled=7), 1: a_member(Outcome.CANCELLED, stop="", more=5), 2: a_member(sampled=3)}

    assert fates(Verdict.CANCELLED, members, {2}) == {"late": 7, "cancelled": 5 + 3}


def test_tokens_of_a_lost_attempt_are_failed_though_the_job_ended_well() -> None:
    assert fates(Verdict.INFORMATIVE, {0: a_member(sampled=10, more=4)}, {0}) == {"kept": 10, "failed": 4}


@given(
    st.sampled_from(Verdict),
    st.lists(st.tuples(st.sampled_from(Outcome), st.sampled_from(["", "finished"]), st.integers(0, 99), st.integers(0, 99), st.booleans())),
)
def test_each_token_has_one_fate(verdict: Verdict, drawn: list[tuple[Outcome, str, int, int, bool]]) -> None:
    members = {i: a_member(outcome, stop=stop, sampled=sampled, more=more) for i, (outcome, stop, sampled, more, _) in enumerate(drawn)}
    valid = {i for i, row in enumerate(drawn) if row[4] and row[0] in (Outcome.OK, Outcome.MODEL_FAILURE)}

    found = fates(verdict, members, valid)

    assert sum(found.values()) == sum(member.spent_tokens for member in members.values())
    assert set(found) <= {fate.value for fate in TokenFate} - {"outside"}


def test_the_kept_sample_is_the_same_prompts_each_time_and_its_share_is_asked_for() -> None:
    prompts = [f"e0-{i}" for i in range(4000)]
    tenth = {prompt for prompt in prompts if is_kept_sample(prompt, 0.1)}

    assert abs(len(tenth) / len(prompts) - 0.1) < 0.02
    assert tenth < {prompt for prompt in prompts if is_kept_sample(prompt, 0.5)}
    assert not any(is_kept_sample(prompt, 0.0) for prompt in prompts)
    assert all(is_kept_sample(prompt, 1.0) for prompt in prompts)
