"""The task `reasoning_gym` from a row to a grade, with the package's own scorers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from tests.judged import eval_context, judged, spec_of
from workers.graders import GraderError
from workers.graders.reasoning_gym import PuzzleGrader
from workers.handlers.base import Environment, StageContext
from workers.handlers.reasoning_gym.handler import SAMPLES, ReasoningGymHandler
from workers.handlers.submission import submitted
from workers.handlers.task_data import BadTaskData, load_rows

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="the extra reasoning-gym")
"""Looked for and not imported: only the graders' processes need it, and each pytest process would import it for a second."""
TO_BE_MADE = {"id": "m1", "dataset": "simple_equations", "seed": 5, "index": 2, "config": {"min_terms": 2, "max_terms": 2}}
BINARY = {"question": "?", "answer": "0 1\n1 0", "metadata": {"source_dataset": "binary_matrix"}}
COUNTDOWN = {"question": "?", "answer": "7*6", "metadata": {"source_dataset": "countdown", "numbers": [6, 7], "target": 42}}
PRIMES = {"question": "?", "answer": "2 × 3", "metadata": {"source_dataset": "prime_factorization", "number": 6, "factors": [2, 3]}}
BOXES = {"question": "?", "answer": None, "metadata": {"source_dataset": "boxnet", "initial_state": {"0.5_0.5": ["box_red", "target_red"]}}}


@pytest.fixture
async def gym() -> AsyncIterator[ReasoningGymHandler]:
    handler = ReasoningGymHandler(PuzzleGrader(processes=1, limit_s=2.0))
    await handler.open()
    yield handler
    await handler.close()


async def rewarded(gym: ReasoningGymHandler, row: Mapping[str, object], *answers: str) -> list[float]:
    return [(await judged(gym, spec_of("reasoning_gym", row), submitted(f"<answer>{answer}</answer>"))).reward for answer in answers]


async def test_every_sample_scores_with_its_answer_only(gym: ReasoningGymHandler) -> None:
    rows = load_rows(SAMPLES[0], gym.layouts).rows

    for row in rows:
        spec = spec_of("reasoning_gym", row)
        gold = gym.gold(spec)
        assert gold is not None
        assert (await judged(gym, spec, gold)).reward == 1.0, row
        assert (await judged(gym, spec, gym.empty(spec))).reward == 0.0, row
        assert (await judged(gym, spec, submitted("I do not know."))).reward < 0.5, row

    assert len(rows) >= 20
    assert len({row["metadata"]["source_dataset"] for row in rows if isinstance(row["metadata"], dict)}) >= 20


async def test_scores_are_the_packages_own_and_an_answer_is_never_run(gym: ReasoningGymHandler, tmp_path: Path) -> None:
    """binary_matrix and countdown hand the answer to `eval`; a fraction survives as it is."""
    run = tmp_path / "was_run"

    fractions = await rewarded(
        gym, BINARY, "0 1\n1 0", "[[0, 1], [1, 0]]", f"open({str(run)!r}, 'w')", f"__import__('os').mkdir({str(run)!r})"
    )
    formulas = await rewarded(gym, COUNTDOWN, "6*7", "6+7", f"__import__('os').mkdir({str(run)!r})")

    assert fractions == [1.0, 0.1, 0.0, 0.0]
    assert formulas == [1.0, 0.05, 0.01]
    assert not run.exists()


async def test_an_answer_that_breaks_the_scorer_scores_nothing_and_a_scorer_that_is_broken_gives_no_score(gym: ReasoningGymHandler) -> None:
    """One scorer raises on what is no number, one never comes back from a tower of powers, one raises and has no reference to be asked."""
    raised = await judged(gym, spec_of("reasoning_gym", PRIMES), submitted("many"))
    endless = await judged(gym, spec_of("reasoning_gym", COUNTDOWN), submitted("9**9**9**9*6/7"))
    without = await judged(gym, spec_of("reasoning_gym", BOXES), submitted("0"))

    assert [(grade.reward, grade.details["reason"]) for grade in (raised, without)] == [(0.0, "scorer_raised")] * 2
    assert (endless.reward, endless.details["reason"], endless.details["stop"]) == (0.0, "answer_killed_grader", "grader_broken")
    spoilt = {**PRIMES, "answer": "no factors"}
    with pytest.raises(GraderError, match="prime_factorization says of its own answer"):
        await judged(gym, spec_of("reasoning_gym", spoilt), submitted("many"))


async def test_a_puzzle_that_is_named_is_made_the_same_in_each_stage(gym: ReasoningGymHandler) -> None:
    """INIT's question is what the model is asked, and EVAL scores no other puzzle than that one."""
    spec = spec_of("reasoning_gym", TO_BE_MADE)
    context = eval_context(spec, submitted(""))
    names = StageContext.__dataclass_fields__
    environment = await gym.init(StageContext(**{name: getattr(context, name) for name in names}))

    gold = gym.gold(spec)
    shown = ReasoningGymHandler().messages(spec)[-1].content
    known = ReasoningGymHandler().gold(spec)
    assert gold is not None
    assert known is not None
    assert environment.data["question"] == shown
    for trajectory in (gold, known):
        assert (await gym.evaluate(replace(eval_context(spec, trajectory), environment=environment))).reward == 1.0

    other = Environment(data={"question": "?", "digest": "another"})
    with pytest.raises(GraderError, match="another puzzle here than INIT made"):
        await gym.evaluate(replace(eval_context(spec, known), environment=other))


async def test_a_puzzle_that_cannot_be_made_is_refused_in_init(gym: ReasoningGymHandler) -> None:
    for change, why in (
        ({"dataset": "no_such_puzzles"}, "has no data set 'no_such_puzzles'"),
        ({"config": {"no_such_setting": 1}}, "unexpected keyword argument 'no_such_setting'"),
        ({"config": {"min_terms": 9, "max_terms": 2}}, "AssertionError"),
    ):
        context = eval_context(spec_of("reasoning_gym", {**TO_BE_MADE, **change}), submitted(""))
        with pytest.raises(BadTaskData, match=why):
            await gym.init(StageContext(**{name: getattr(context, name) for name in StageContext.__dataclass_fields__}))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"dataset": "../x", "seed": 1, "index": 0}, "dataset: .*expected the name of a data set"),
        ({"dataset": "ab", "seed": -1, "index": 0}, "seed: .*expected a whole number"),
        ({"dataset": "ab", "seed": 1, "index": 0, "config": {"seed": 2}}, "config: .*the seed stands beside it"),
        ({"question": "?", "metadata": "[1]"}, "metadata: .*expected a map"),
        ({"question": "?", "metadata": {}}, "dataset: .*expected the name"),
        ({"question": "?", "metadata": {"source_dataset": "ab"}, "answr": "x"}, "unknown fields answr"),
    ],
)
def test_rows_that_are_no_puzzle_are_refused(row: dict[str, object], why: str) -> None:
    with pytest.raises(BadTaskData, match=why):
        ReasoningGymHandler().gold(spec_of("reasoning_gym", row))


def test_an_exported_entry_may_hold_its_metadata_as_json() -> None:
    row = {**BINARY, "metadata": json.dumps(BINARY["metadata"])}

    gold = ReasoningGymHandler().gold(spec_of("reasoning_gym", row))

    assert gold is not None
    assert gold.answer == "<answer>0 1\n1 0</answer>"


def test_the_tool_is_there_when_it_is_asked_for() -> None:
    plain, with_python = (spec_of("reasoning_gym", BINARY, {"tools": tools}) for tools in (False, True))
    handler = ReasoningGymHandler()

    assert handler.sandbox_spec(plain) is None
    assert handler.sandbox_spec(with_python) is not None
    assert ["`python`" in handler.messages(spec)[0].content for spec in (plain, with_python)] == [False, True]
    with pytest.raises(InvalidRequest, match=r"options\.tools"):
        handler.messages(spec_of("reasoning_gym", BINARY, {"tools": ["python"]}))


class WithoutPackage(ReasoningGymHandler):
    """On a machine that lacks it."""

    package = "a_package_that_is_not_there"


async def test_a_worker_without_the_package_says_which_extra_brings_it() -> None:
    handler = WithoutPackage()

    with pytest.raises(InvalidRequest, match=r"needs the package reasoning-gym: pip install 'rollstream\[reasoning-gym\]'"):
        await handler.open()
    await handler.close()
