"""What the scripted model says where that is written down: scripts are played to their end, from what the dialogue shows alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.messages import ChatMessage
from workers.agent.renderers import ChatMLRenderer, tool_schema
from workers.llm import chatml
from workers.llm.scripted import Act, PolicyOptions, Problem, ScriptedCall, read_problems
from workers.llm.scripted.acts import place_in, script_as_json
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.problems import ProblemBank
from workers.llm.tokenizer import load

TOKENIZER = load()
RIGHT = (
    Act("I run the tests first.", (ScriptedCall("bash", {"command": "python -m pytest"}),)),
    Act(calls=(ScriptedCall("bash", {"command": "sed -i s/1/2/ a.py"}),)),
    Act("Done: \\boxed{4}"),
)
WRONG = (RIGHT[0], Act(calls=(ScriptedCall("bash", {"command": "rm -f a.py"}),)), Act("Done: \\boxed{5}"))
SCRIPTED = Problem("Mend the module.", "4", RIGHT, (WRONG,))


def play(policy: Policy, problem: Problem, seed: int, *, tools: tuple[str, ...] = ("bash",)) -> list[str]:
    """The turns of one member, each call with a seed of its own, as the agent loop does it."""
    renderer = ChatMLRenderer(TOKENIZER)
    schemas = [tool_schema(name, {"type": "object", "properties": {"command": {"type": "string"}}}) for name in tools]
    ids = list(renderer.first_prompt([ChatMessage(role="user", content=f"Please: {problem.question}")], schemas).ids)
    turns: list[str] = []
    places: list[tuple[int, int]] = []
    while len(turns) < 12:
        said = policy.utter(ids, seed=1000 * seed + len(turns), max_tokens=2000)
        turns.append(TOKENIZER.decode(said))
        if chatml.CALL_OPEN not in turns[-1]:
            return turns
        places.append((len(ids), len(ids) + len(said)))
        ids = list(renderer.next_prompt([*ids, *said], places, [ChatMessage(role="tool", content="ok")]).ids)
    raise AssertionError("it never ended")


def scripted_policy(*, bad_json_rate: float = 0.0) -> Policy:
    options = PolicyOptions(all_right=0.0, all_wrong=0.0, bad_json_rate=bad_json_rate)
    return Policy(TOKENIZER, ProblemBank([SCRIPTED]), options)


def test_each_member_plays_one_script_to_its_end() -> None:
    policy = scripted_policy()

    ends = []
    for seed in range(24):
        turns = play(policy, SCRIPTED, seed)
        assert len(turns) == 3
        assert RIGHT[0].was_said_in(turns[0])
        is_right = RIGHT[1].was_said_in(turns[1])
        assert is_right != WRONG[1].was_said_in(turns[1])
        assert (RIGHT if is_right else WRONG)[2].was_said_in(turns[2])
        ends.append(is_right)

    assert 0 < sum(ends) < 24  # both kinds are in one group


def test_a_call_that_was_miswritten_is_made_again() -> None:
    policy = scripted_policy(bad_json_rate=0.5)

    played = [play(policy, SCRIPTED, seed) for seed in range(12)]

    assert any(len(turns) > 3 for turns in played)
    for turns in played:
        script = RIGHT if any(RIGHT[1].was_said_in(turn) for turn in turns) else WRONG
        assert place_in(script, turns) == 3


def test_acts_whose_tool_is_not_on_offer_are_left_out() -> None:
    assert len(play(scripted_policy(), SCRIPTED, 1, tools=())) == 1
    assert len(play(scripted_policy(), SCRIPTED, 1, tools=("python",))) == 1


def test_an_interrupted_turn_goes_on_where_it_stopped() -> None:
    """An engine that updates its weights ends a call in the middle of an answer; the whole answer behind its beginning would be another."""
    problem = Problem("Write it.", "x", (Act("```python\nprint(1)\nprint(2)\n```"),), ((Act("No."),),))
    policy = Policy(TOKENIZER, ProblemBank([problem]), PolicyOptions(all_right=1.0))
    prompt = f"{chatml.OPEN}user\nWrite it.{chatml.CLOSE}\n{chatml.OPEN}assistant\n<think>\nHm.\n</think>\n\n```python\nprint(1)\n"

    rest = TOKENIZER.decode(policy.utter(TOKENIZER.encode_template(prompt), seed=3, max_tokens=100))

    assert rest == f"print(2)\n```{chatml.CLOSE}"


def test_scripts_are_read_from_a_problems_file(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    line = {"question": "q", "answer": "4", "right": script_as_json(RIGHT), "wrong": [script_as_json(WRONG)]}
    file.write_text(json.dumps(line), encoding="utf-8")

    [problem] = read_problems([file])

    assert (problem.right, problem.wrong) == (RIGHT, (WRONG,))


@pytest.mark.parametrize(
    "wrong", [{"right": "x"}, {"right": [{"says": "x"}]}, {"right": [{"say": "x", "calls": [{"name": 1}]}]}, {"wrong": {"a": 1}}]
)
def test_a_script_that_is_none_is_refused_with_its_place(tmp_path: Path, wrong: dict[str, object]) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"question": "q", "answer": "4", **wrong}), encoding="utf-8")

    with pytest.raises(ValueError, match=r"p\.jsonl:1: expected"):
        read_problems([file])
