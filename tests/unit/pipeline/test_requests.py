"""What people ask for is refused with the field, the rule and what came, or becomes the record that travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import decode, encode
from pipeline.errors import InvalidRequest
from pipeline.messages import JobTemplate, Limits, Prompt, Recovery, Sampling
from pipeline.prompts import MAX_DEPTH, encode_prompt, plain_map, prompt_data
from pipeline.requests import JobRequest, LimitsRequest, SamplingRequest, bounded_int, bounded_seconds, run_id, template_id
from pipeline.step_request import StepRequest
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.validation_request import ValidationRequest

VALID = {"task": "math", "prompt": {"question": "2 + 2?"}}


def refusal_of(**changes: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        JobRequest.parse({**VALID, **changes})
    return refusal.value


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        ({"priority": "8"}, "priority", "expected an integer from -100 to 100, got '8' (str)"),
        ({"priority": True}, "priority", "expected an integer from -100 to 100, got True (bool)"),
        ({"priority": 1.0}, "priority", "expected an integer from -100 to 100, got 1.0 (float)"),
        ({"priority": None}, "priority", "expected an integer from -100 to 100, got None (NoneType)"),
        ({"wall_s": float("inf")}, "wall_s", "expected a number from 0.1 to 2,592,000, got inf (float)"),
        ({"wall_s": 86_400_000}, "wall_s", "expected a number from 0.1 to 2,592,000, got 86400000 (int)"),
        ({"sampling": {"temperature": math.nan}}, "sampling.temperature", "expected a number from 0 to 10, got nan (float)"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "expected a number above 0 and at most 1, got 0 (int)"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature", "unknown field; did you mean 'temperature'?"),
        ({"sampling": 3}, "sampling", "expected a SamplingRequest or a map with its fields, got 3 (int)"),
        ({"limits": {"max_turns": 0}}, "limits.max_turns", "expected an integer from 1 to 10,000, got 0 (int)"),
        ({"limits": {"max_sampled_tokens": 10**12}}, "limits.max_sampled_tokens", "expected an integer from 1 to 16,777,216"),
        ({"limits": {"max_context_tokens": 10}}, "limits", "one answer of a tool would not fit into the context"),
        ({"recovery": "retry"}, "recovery", "expected one of 'restart', 'salvage_partial', got 'retry' (str)"),
        ({"task": ""}, "task", "expected text that matches ^[A-Za-z]"),
        ({"task": "math grading"}, "task", "expected text that matches ^[A-Za-z]"),
        ({"id": "a.b"}, "id", "got 'a.b' (str)"),
        ({"id": "a\n"}, "id", r"got 'a\n' (str)"),
        ({"frobnicate": 1}, "frobnicate", "unknown field; known are task, model, sampling"),
        ({"prompt": {}}, "prompt", "expected at least one value that is not empty, got {}: there is nothing to work on"),
        ({"prompt": {"question": " \n"}}, "prompt", "expected at least one value that is not empty"),
        ({"prompt": "2 + 2?"}, "prompt", "expected a map with text as names, got '2 + 2?' (str)"),
        ({"prompt": {"question": {1, 2}}}, "prompt", "got set at 'question'"),
        ({"prompt": {"a": [1, {"b": object()}]}}, "prompt", "got object at 'a[1].b'"),
        ({"prompt": {"a": b"raw"}}, "prompt", "got bytes at 'a'"),
        ({"prompt": {"a": 2**64}}, "prompt", "expected integers of 64 bits, got 65 bits at 'a'"),
        ({"prompt": {"a": "\ud800"}}, "prompt", "got half a surrogate pair at 'a'"),
        ({"prompt": {"a": np.zeros(3)}}, "prompt", "got an array at 'a': use .tolist()"),
        ({"options": {1: 2}}, "options.1", "expected a valid string, got 1 (int)"),
    ],
)
def test_what_does_not_fit_is_named_with_the_rule_and_what_came(changes: dict[str, object], field: str, sentence: str) -> None:
    refusal = refusal_of(**changes)

    assert refusal.field == field
    assert sentence in str(refusal)


def test_several_problems_are_said_at_once_and_the_first_names_the_field() -> None:
    refusal = refusal_of(priority=1000, max_lost=-1, wall_s="s", model=3, run_seed=1.5, capability="X", max_failed=2.0)

    assert refusal.field == "model"
    for word in ("model: ", "run_seed: ", "capability: ", "priority: ", "wall_s: ", "and 2 more"):
        assert word in str(refusal)


def test_the_constructor_refuses_like_the_parser_also_for_inner_requests() -> None:
    with pytest.raises(InvalidRequest, match=r"max_tokens: expected an integer from 1 to 16,777,216, got 0 \(int\)"):
        SamplingRequest(max_tokens=0)
    with pytest.raises(InvalidRequest, match=r"JobRequest: expected a valid dictionary or instance of JobRequest, got \[3\] \(list\)"):
        JobRequest.parse([3])


def test_defaults_are_those_of_the_records() -> None:
    assert SamplingRequest().record() == Sampling()
    assert LimitsRequest().record() == Limits()
    assert JobRequest.parse(VALID).template() == JobTemplate(task="math")


def test_a_request_becomes_the_record_that_was_asked_for() -> None:
    request = JobRequest.parse(
        {
            **VALID,
            "sampling": {"temperature": 0, "max_tokens": 7},
            "exact_logprobs": False,
            "limits": {"max_turns": 3},
            "options": {"strict": True, "tools": ("python", "bash")},
            "recovery": "salvage_partial",
            "priority": -5,
        }
    )

    template = request.template()

    assert template.sampling == Sampling(temperature=0.0, max_tokens=7)
    assert not template.exact_logprobs
    assert template.limits == Limits(max_turns=3)
    assert template.options == {"strict": True, "tools": ["python", "bash"]}
    assert (template.recovery, template.priority) == (Recovery.SALVAGE_PARTIAL, -5)
    assert decode(JobTemplate, encode(template)) == template


@pytest.mark.parametrize(("sampling", "named"), [({"temperature": 0}, "greedy"), ({"top_p": 0.9, "top_k": 5}, "top_p, top_k cut")])
def test_sampling_without_a_ratio_is_refused_before_a_prompt_is_spent_on_it(sampling: dict[str, float], named: str) -> None:
    """Workers refuse it too, each job for itself: a step would kill prompt after prompt before anybody looks."""
    with pytest.raises(InvalidRequest, match=named):
        StepRequest.parse({"task": "math", "groups": 1, "n": 2, "sampling": sampling})
    with pytest.raises(InvalidRequest, match=rf"{named}.*exact_logprobs=False"):
        JobRequest.parse({**VALID, "sampling": sampling})

    single = JobRequest.parse({**VALID, "sampling": sampling, "exact_logprobs": False})
    validation = ValidationRequest.parse({"task": "math", "prompts": [{"q": 1}], "sampling": sampling})

    assert not single.template().exact_logprobs
    assert not validation.template().exact_logprobs
    assert StepRequest(task="math", groups=1, n=2).template().exact_logprobs


def test_a_step_request_becomes_the_spec_that_was_asked_for() -> None:
    request = StepRequest(task="math", groups=64, n=8, informative_on="resolved", cancel=CancelRule.CARRY, reward_low=0.0)

    assert request.spec() == StepSpec(target=64, n=8, component="resolved", cancel=CancelRule.CARRY, reward_low=0.0)
    assert StepRequest(task="math", groups=1, n=2).spec() == StepSpec(target=1, n=2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n": 0}, "n: expected an integer from 1 to 1,024, got 0"),
        ({"groups": 0}, "groups: expected an integer from 1 to 100,000, got 0"),
        ({"min_members": 9}, "expected min_members (9) to be at most n (8)"),
        ({"n": 1}, "expected n of at least 2 with policy 'spread', which needs members that differ, got 1; policy='every' filters nothing"),
        ({"policy": "no policy"}, "policy: "),
        ({"policy": "pass_rate_between", "policy_args": {"low": 2}}, "policy_args: expected 0 <= low <= high <= 1, got low=2"),
        ({"policy_args": {"low": 0.1}}, "policy_args: expected none for policy 'spread', got low"),
        ({"max_staleness": -1}, "max_staleness: expected an integer from 0 to 1,000,000, got -1"),
        ({"group_deadline_s": -1.0}, "group_deadline_s: "),
        ({"loss": {"time": "no"}}, "loss.time: expected 'train', 'mask' or 'exclude', got 'no'"),
        ({"loss": {"tim": "mask"}}, "loss.tim: expected 'finished', "),
        ({"reward_low": 1.0, "reward_high": 1.0}, "expected reward_low (1.0) to be below reward_high (1.0)"),
        ({"cancel": "some"}, "cancel: expected one of 'default', 'carry', 'all', got 'some'"),
        ({"ahead": 1000}, "ahead: expected an integer from 0 to 64, got 1000"),
        ({"on_stale": "drop", "ahead": 2}, "expected ahead (2) to be at most max_staleness (1) with on_stale='drop': what is sampled"),
    ],
)
def test_a_step_that_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        StepRequest.parse({"task": "math", "groups": 4, "n": 8, **changes})

    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "changes", [{}, {"max_staleness": 0}, {"max_staleness": 100}, {"deterministic": True}, {"ahead": 1, "max_staleness": 3}]
)
def test_a_step_that_drops_what_is_too_old_opens_no_step_whose_groups_would_be(changes: dict[str, object]) -> None:
    request = StepRequest.parse({"task": "math", "groups": 4, "n": 8, "on_stale": "drop", **changes})

    assert request.ahead <= request.max_staleness


def test_options_are_bounded() -> None:
    with pytest.raises(InvalidRequest, match=r"options: expected at most 1,048,576 bytes, got .*: put what is long into the prompt"):
        JobRequest.parse({**VALID, "options": {"file": "x" * 1_100_000}}).template()


def test_a_prompt_above_the_bound_names_its_longest_part() -> None:
    with pytest.raises(InvalidRequest, match=r"prompt: expected at most 1,000 bytes, got 2,.* \(most of it in 'image'\)"):
        encode_prompt("p", {"question": "q", "image": "x" * 2000}, max_body_bytes=1000)

    assert decode(Prompt, encode_prompt("p", {"question": "q"}, max_body_bytes=1000)) == Prompt(id="p", data={"question": "q"})


def test_equal_templates_have_equal_names_and_others_others() -> None:
    first, second = (encode(JobRequest.parse({**VALID, "priority": priority}).template()) for priority in (1, 2))

    assert template_id(first) == template_id(bytes(first))
    assert template_id(first) != template_id(second)


def test_nesting_is_bounded() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]

    assert "levels of nesting" in str(refusal_of(prompt={"deep": deep}))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=5))
def test_every_plain_map_passes_unchanged_and_travels(data: dict[str, object]) -> None:
    assert plain_map(data) == data
    assert decode(Prompt, encode_prompt("p", plain_map(data), max_body_bytes=10**9)).data == data


def test_numbers_of_numpy_become_plain_ones() -> None:
    row = plain_map({"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)})

    assert row == {"i": 3, "f": 0.5, "b": True}
    assert [type(value) for value in row.values()] == [int, float, bool]


def test_a_row_that_is_no_map_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match=r"dataset\[3\]: expected a map of names to values, got \('q', 'a'\) \(tuple\)"):
        prompt_data(("q", "a"), field="dataset[3]")


@pytest.mark.parametrize("wrong", ["", "Has-Upper", "-x", "a" * 49, "a.b", "a b", 7, None])
def test_a_run_id_that_cannot_be_part_of_a_key_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="run: expected 1 to 48 of a-z"):
        run_id(wrong)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, True, "5"])
def test_seconds_are_bounded(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="timeout_s: expected seconds"):
        bounded_seconds(wrong, "timeout_s")


def test_no_limit_and_whole_numbers() -> None:
    assert bounded_seconds(None, "timeout_s") is None
    assert bounded_seconds(2, "timeout_s") == 2.0
    assert bounded_int(3, "count", low=1, high=3) == 3
    with pytest.raises(InvalidRequest, match="count: expected a whole number from 1 to 3, got True"):
        bounded_int(True, "count", low=1, high=3)


def endless() -> dict[str, object]:
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"x": deep}
    return deep


@pytest.mark.parametrize("value", [endless(), 10**6_000], ids=["endless", "digits"])
@pytest.mark.parametrize("field", ["task", "recovery", "wall_s", "prompt", "options", "limits", "id"])
def test_what_cannot_even_be_shown_is_refused_like_the_rest(field: str, value: object) -> None:
    """The message that should have said what came raised something else: a recursion, or that the number has too many digits to print."""
    job: dict[str, object] = {"task": "math", "prompt": {"question": "1 + 1"}, field: value}
    for ask in (lambda: JobRequest.parse(job), lambda: run_id(value), lambda: bounded_seconds(value, "wait")):
        with pytest.raises(InvalidRequest):
            ask()


def test_steps_are_open_as_far_ahead_as_groups_may_be_old_unless_it_is_said() -> None:
    def a_step(**asked: object) -> StepRequest:
        return StepRequest.parse({"task": "math", "groups": 2, "n": 4} | asked)

    assert [a_step(max_staleness=age).ahead for age in (0, 1, 4, 100)] == [0, 1, 4, 64]
    assert a_step(max_staleness=4, ahead=2).ahead == 2
    assert a_step().ahead == 1
    assert a_step(max_staleness=4, deterministic=True).ahead == 0


def test_what_is_said_of_a_stop_reason_goes_over_the_default_and_the_others_keep_theirs() -> None:
    spec = StepRequest.parse({"task": "math", "groups": 2, "n": 4, "loss": {"time": "train", "turns": "exclude"}}).spec()

    assert {stop.value: loss.value for stop, loss in spec.loss.items()} == {
        "tokens": "mask",
        "context": "mask",
        "time": "train",
        "turns": "exclude",
    }
