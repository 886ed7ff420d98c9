"""What the model is asked and taught, and the vocabulary that is made for it; none of it needs torch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from examples.train_tiny import curves
from examples.train_tiny.dialogues import SCHEMAS, Spoken, answer, call, render
from examples.train_tiny.problems import HELD_OUT, Problem, held_out_problems, some_problems, training_rows
from examples.train_tiny.requests import held_out_request, step_request
from examples.train_tiny.taught import taught
from examples.train_tiny.vocabulary import make_vocabulary
from pipeline.messages import ChatSettings
from workers.agent import Renderer, renderer_for
from workers.handlers.math.handler import MathHandler
from workers.tools import ToolSet
from workers.tools.python_tool import PythonTool


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The workers' renderer on the model's vocabulary."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "tokenizer.json").write_text(make_vocabulary(), encoding="utf-8")
    return renderer_for(ChatSettings(tokenizer=str(folder)))


def test_held_out_problems_are_fixed_different_and_never_trained_on() -> None:
    held_out = held_out_problems()
    trained = {row["question"] for seed in (1, 2) for row in training_rows(seed, 3000)}

    assert len(set(held_out)) == HELD_OUT
    assert held_out == held_out_problems()
    assert held_out[0] == Problem(77, "minus", 66)
    assert trained.isdisjoint(problem.question for problem in held_out)


def test_seeds_are_fed_other_rows() -> None:
    assert training_rows(1, 20) == training_rows(1, 20) != training_rows(2, 20)


def test_what_is_taught_is_right_about_once_in_five() -> None:
    """The held-out mean that training begins with follows from this share, 0.22 (0.62 · 0.36), less what the network copies wrongly."""
    rng = random.Random(3)
    problems = some_problems(rng, held_out=False)

    right = [taught(problem, rng)[-1].text == answer(problem.answer) for problem in (next(problems) for _ in range(4000))]

    assert sum(right) / len(right) == pytest.approx(0.2236, abs=0.02)


def test_a_dialogue_is_some_fifty_tokens_of_which_the_model_says_its_turns(renderer: Renderer) -> None:
    turns = [Spoken(call("12*47"), "564"), Spoken(answer(564))]

    ids, said = render(renderer, "What is 12 times 47?", turns)

    spoken = renderer.tokenizer.decode([id_ for id_, is_said in zip(ids, said, strict=True) if is_said])
    assert len(ids) < 70
    assert spoken == "".join(turn.text + "<|im_end|>" for turn in turns)


def test_a_taught_call_is_one_that_the_agent_loop_runs(renderer: Renderer) -> None:
    ids = renderer.tokenizer.encode_template(call("12*47"))

    parsed = renderer.parse(ids, renderer.turn_text(ids), finish="stop", tools={"python": PythonTool.parameters}, in_thought=None)

    assert [(item.name, item.arguments) for item in parsed.calls] == [("python", {"code": "12*47"})]


def test_the_tool_is_shown_as_the_workers_show_it() -> None:
    """Were it worded otherwise, the model would be asked in a language that it was not taught in."""

    class NoKernel:
        """The schema is read off the class."""

    tool = PythonTool(NoKernel())  # type: ignore[arg-type]  # it is not called

    assert ToolSet([tool]).schemas() == SCHEMAS
    assert MathHandler.name == step_request(Path("/tokenizer"), 1).task


def test_steps_train_and_measurements_measure_under_the_same_sampling_and_limits() -> None:
    step, held_out = step_request(Path("/tokenizer"), 1), held_out_request(Path("/tokenizer"), 1, tasks=60)

    assert (step.sampling, step.limits, step.chat, step.run_seed) == (held_out.sampling, held_out.limits, held_out.chat, held_out.run_seed)
    assert len(held_out.prompts) == 60


def test_curves_keep_what_a_step_said_last(tmp_path: Path) -> None:
    """A step that is taken again after a kill has a second line."""
    curves.append(tmp_path, curves.Point(step=0, minutes=0.0, held_out=0.2, held_out_tasks=200))
    curves.append(tmp_path, curves.Point(step=1, minutes=0.5, tokens=100, reward=0.25))
    curves.append(tmp_path, curves.Point(step=1, minutes=0.7, tokens=120, reward=0.5))

    found = curves.read(tmp_path)

    assert [(point.step, point.tokens, point.held_out_tasks) for point in found] == [(0, 0, 200), (1, 120, 0)]
    assert found[1].reward == 0.5
    assert found[0].held_out == 0.2
