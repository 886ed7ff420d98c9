"""The stand-in for a model: deterministic, in known shares, and reading what tools answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Sampling
from workers.llm.scripted import PolicyOptions, Problem, read_problems
from workers.llm.scripted.conversation import read_conversation
from workers.llm.scripted.distribution import forced_logprob, token_logprobs
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.prefix_cache import PrefixCache
from workers.llm.scripted.problems import ProblemBank
from workers.llm.scripted.speech import altered, code_for, plausible_value
from workers.llm.tokenizer import load

TOKENIZER = load()
PROBLEMS = [Problem(f"What is {n} + {n}?", str(2 * n)) for n in range(200)]
PYTHON = {"type": "function", "function": {"name": "python", "parameters": {"type": "object", "properties": {"source": {}}}}}


def a_policy(**options: float) -> Policy:
    return Policy(TOKENIZER, ProblemBank(PROBLEMS), PolicyOptions(**options))  # type: ignore[arg-type]  # rates and the seed


def a_prompt(question: str, *, tools: bool = False, tail: str = "") -> list[int]:
    system = f"<|im_start|>system\n<tools>\n{json.dumps(PYTHON)}\n</tools><|im_end|>\n" if tools else ""
    return TOKENIZER.encode_template(f"{system}<|im_start|>user\nSolve.\n\n{question}<|im_end|>\n{tail}<|im_start|>assistant\n")


def say(policy: Policy, prompt: list[int], seed: int = 0, max_tokens: int = 2000) -> str:
    return TOKENIZER.decode(policy.utter(prompt, seed, max_tokens))


def test_a_repeated_call_says_the_same_and_members_differ() -> None:
    policy, prompt = a_policy(), a_prompt(PROBLEMS[3].question)

    said = [policy.utter(prompt, seed, 2000) for seed in range(8)]

    assert said == [a_policy().utter(prompt, seed, 2000) for seed in range(8)]
    assert len({tuple(ids) for ids in said}) == 8


def test_problems_are_solved_by_all_by_none_or_by_some_in_the_shares_asked_for() -> None:
    policy = a_policy(tool_rate=0.0, long_rate=0.0)
    kinds = {"all": 0, "none": 0, "some": 0}
    for problem in PROBLEMS:
        prompt = a_prompt(problem.question)
        right = sum(f"\\boxed{{{problem.answer}}}" in say(policy, prompt, seed) for seed in range(8))
        kinds["all" if right == 8 else "none" if right == 0 else "some"] += 1

    assert 0.2 < kinds["all"] / 200 < 0.4
    assert 0.1 < kinds["none"] / 200 < 0.35
    assert kinds["some"] > 70


def test_a_question_it_does_not_know_is_answered_wrongly_and_alike_in_kind() -> None:
    assert a_policy(all_right=1.0).outlook("What is the name of the moon?").chance == 0.0


def test_it_calls_the_tool_by_the_argument_it_was_shown_and_answers_with_what_was_printed() -> None:
    policy = a_policy(tool_rate=1.0, bad_json_rate=0.0, bad_code_rate=0.0, drift_rate=0.0)
    first = say(policy, a_prompt(PROBLEMS[5].question, tools=True))
    body = first.split("<tool_call>\n")[1].split("\n</tool_call>")[0]
    assert set(json.loads(body)["arguments"]) == {"source"}

    tail = f"<|im_start|>assistant\n{first}\n<|im_start|>user\n<tool_response>\n4711\n</tool_response><|im_end|>\n"
    second = say(policy, a_prompt(PROBLEMS[5].question, tools=True, tail=tail))

    assert "\\boxed{4711}" in second


def test_it_tries_again_after_a_failed_call_but_not_for_ever() -> None:
    policy = a_policy(tool_rate=1.0)
    turn = "<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\n<tool_response>\nNameError: no\n</tool_response><|im_end|>\n"
    question = PROBLEMS[5].question

    after_one = [say(policy, a_prompt(question, tools=True, tail=turn), seed) for seed in range(20)]
    after_three = [say(policy, a_prompt(question, tools=True, tail=turn * 3), seed) for seed in range(20)]

    assert sum("<tool_call>" in text for text in after_one) > 10
    assert not any("<tool_call>" in text for text in after_three)


def test_without_tools_it_calls_none() -> None:
    assert not any("<tool_call>" in say(a_policy(tool_rate=1.0), a_prompt(PROBLEMS[5].question), seed) for seed in range(20))


def test_it_sometimes_runs_on_until_it_is_cut() -> None:
    policy = a_policy(all_right=0.0, all_wrong=1.0, long_rate=1.0, tool_rate=0.0)

    ids = policy.utter(a_prompt(PROBLEMS[1].question), 0, 700)

    assert len(ids) == 700
    assert policy.end_id not in ids


def test_interrupted_in_a_call_it_closes_it_and_in_a_thought_it_goes_on() -> None:
    policy = a_policy()
    prompt = a_prompt(PROBLEMS[1].question, tools=True)

    in_call = say(policy, [*prompt, *TOKENIZER.encode_template('<think>\nx\n</think>\n\n<tool_call>\n{"name": "py')])
    in_thought = say(policy, [*prompt, *TOKENIZER.encode_template("<think>\nLet me")])

    assert in_call == "</tool_call><|im_end|>"
    assert "<think>" not in in_thought
    assert "</think>" in in_thought


def test_some_of_what_it_says_is_spelt_otherwise_than_the_tokenizer_would() -> None:
    policy = a_policy(drift_rate=0.5)
    prompt = a_prompt(PROBLEMS[1].question)
    said = [policy.utter(prompt, seed, 500) for seed in range(20)]

    again = [TOKENIZER.encode_template(TOKENIZER.decode(ids)) for ids in said]

    assert sum(a != b for a, b in zip(said, again, strict=True)) > 10
    assert [TOKENIZER.decode(ids) for ids in again] == [TOKENIZER.decode(ids) for ids in said]


@given(st.sampled_from(["7", "-12", "\\frac{3}{4}", "0.50", "\\pi", "x^2 + 1", "A", "Z", "(1, 3]"]), st.integers())
def test_a_wrong_value_is_another_one(value: str, seed: int) -> None:
    import random

    assert altered(value, random.Random(seed)) != value


@given(st.integers(-(10**9), 10**9), st.integers())
def test_the_code_it_writes_prints_the_value(value: int, seed: int) -> None:
    import contextlib
    import io
    import random

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code_for(random.Random(seed), str(value)), {})

    assert plausible_value(out.getvalue()) == str(value)


def test_the_longest_question_at_a_place_is_found_inside_other_text() -> None:
    bank = ProblemBank([Problem("What is 1?", "1"), Problem("What is 1? And what is 2?", "2")])

    found = bank.find("Please: What is 1? And what is 2? Be brief.")

    assert found is not None
    assert found.answer == "2"
    assert bank.find("What is 3?") is None


def test_problem_files_have_a_head_and_broken_lines_are_named(tmp_path: Path) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text('{"seed": 1, "licence": "x"}\n{"question": "q1", "answer": 5}\n\n{"data": {"question": "q2", "answer": "a"}}\n')
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "q1", "answer": "1"}\n{"question": "q2"}\n')

    assert read_problems([good]) == [Problem("q1", "5"), Problem("q2", "a")]
    with pytest.raises(ValueError, match=r"bad\.jsonl:2"):
        read_problems([bad])


def test_a_prompt_is_read_as_it_stands() -> None:
    text = TOKENIZER.decode(a_prompt("What is 5?", tools=True, tail="<|im_start|>assistant\nx<|im_end|>\n")) + "<think>\nso"

    conversation = read_conversation(text)

    assert conversation.question.endswith("What is 5?")
    assert (conversation.tools, conversation.answers) == ({"python": "source"}, 1)
    assert (conversation.tool_result, conversation.opened) == (None, "<think>\nso")


IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=30)


@given(IDS, IDS, st.floats(0.1, 3.0), st.sampled_from(["raw", "processed"]))
def test_logprobs_are_finite_negative_and_exact_in_float32(prompt: list[int], output: list[int], temperature: float, mode: str) -> None:
    values = token_logprobs(
        prompt,
        output,
        ["v"] * len(output),
        Sampling(temperature=temperature),
        mode="raw" if mode == "raw" else "processed",
        vocab_size=TOKENIZER.vocab_size,
    )

    assert all(math.isfinite(value) and value <= 0 for value in values)
    assert [float(np.float32(value)) for value in values] == values


@given(IDS, IDS)
def test_a_call_interrupted_and_gone_on_with_has_the_logprobs_of_one_that_was_not(prompt: list[int], output: list[int]) -> None:
    def logprobs(before: list[int], after: list[int]) -> list[float]:
        return token_logprobs(before, after, ["v"] * len(after), Sampling(), mode="processed", vocab_size=TOKENIZER.vocab_size)

    cut = len(output) // 2

    assert logprobs(prompt, output[:cut]) + logprobs(prompt + output[:cut], output[cut:]) == logprobs(prompt, output)


def test_other_weights_have_other_logprobs_and_a_forced_token_tells_the_mode() -> None:
    old, new = (token_logprobs([1], [2, 3], [v] * 2, Sampling(), mode="raw", vocab_size=100) for v in ("a", "b"))

    assert old != new
    assert forced_logprob("processed", 100) == 0.0
    assert forced_logprob("raw", 100) < -1


def test_top_k_of_one_makes_every_token_certain() -> None:
    assert token_logprobs([1], [2, 3], ["v"] * 2, Sampling(top_k=1), mode="processed", vocab_size=100) == [0.0, 0.0]


def test_the_prefix_cache_counts_whole_blocks_and_forgets_the_oldest() -> None:
    cache = PrefixCache(block_size=4, max_blocks=4)
    cache.add(list(range(10)), None, "v1")

    assert cache.look_up(list(range(10)), None) == (8, "v1")
    assert cache.look_up(list(range(8)), None) == (4, "v1"), "the last token is always computed"
    assert cache.look_up(list(range(10)), "salt") == (0, None)
    cache.add([*range(100, 116)], None, "v2")
    assert cache.look_up(list(range(10)), None) == (0, None)
