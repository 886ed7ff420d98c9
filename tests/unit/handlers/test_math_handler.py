"""The task `math` from a row to a grade, without a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources.abc import Traversable

import pytest

from pipeline.messages import RewardSource
from tests.judged import judged, spec_of
from workers.graders import GraderError
from workers.handlers.math.handler import SAMPLES, MathHandler
from workers.handlers.submission import submitted
from workers.handlers.task_data import BadTaskData, load_rows


@pytest.fixture
async def math() -> AsyncIterator[MathHandler]:
    handler = MathHandler()
    await handler.open()
    yield handler
    await handler.close()


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: str(sample.name))
async def test_every_sample_scores_with_its_answer_only(math: MathHandler, sample: Traversable) -> None:
    for row in load_rows(sample, math.layouts).rows:
        spec = spec_of("math", row)

        assert (await judged(math, spec, math.gold(spec))).reward == 1.0, row
        for answer in ("", r"\boxed{}", rf"\boxed{{{row['question']}}}"):
            assert (await judged(math, spec, submitted(answer))).reward == 0.0, row
        assert (await judged(math, spec, math.empty(spec))).reward == 0.0, row


async def test_each_of_several_right_answers_scores(math: MathHandler) -> None:
    spec = spec_of("math", {"question": "?", "answer": "3", "also": [r"\text{three or so}", "2"]})

    rewards = [(await judged(math, spec, submitted(rf"\boxed{{{answer}}}"))).reward for answer in ("3", "2", "4")]

    assert rewards == [1.0, 1.0, 0.0]


async def test_a_reference_that_is_no_answer_is_no_ones_zero(math: MathHandler) -> None:
    """The other reference still scores; a wrong answer could be the broken one's."""
    spec = spec_of("math", {"question": "?", "answer": ["NaN", "2"]})

    assert (await judged(math, spec, submitted(r"\boxed{2}"))).reward == 1.0
    with pytest.raises(GraderError):
        await judged(math, spec, submitted(r"\boxed{3}"))


async def test_a_raw_row_of_a_data_set_is_judged_as_it_stands(math: MathHandler) -> None:
    spec = spec_of("math", {"question": "What is 48 + 24?", "answer": "It is 48 + 24 = 72.\n#### 72"})

    assert math.messages(spec)[-1].content == "What is 48 + 24?"
    assert (await judged(math, spec, submitted(r"\boxed{72}"))).reward == 1.0
    assert (await judged(math, spec, math.gold(spec))).reward == 1.0


async def test_a_question_without_an_answer_can_be_asked_and_not_judged(math: MathHandler) -> None:
    spec = spec_of("math", {"question": "2 + 2?"}, reward=RewardSource.OUTSIDE)

    assert math.messages(spec)[-1].content == "2 + 2?"
    with pytest.raises(BadTaskData, match="fit no layout"):
        await judged(math, spec, submitted(r"\boxed{4}"))
