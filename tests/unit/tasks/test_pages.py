"""Tasks as people are shown them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ops.demo.tasks import TASKS
from ops.tasks.listing import SandboxesHere, listed_tasks
from ops.tasks.page import page_as_map, render_page, task_page
from ops.tasks.words import task_as_map, task_lines
from pipeline.errors import InvalidRequest
from pipeline.messages import JobTemplate
from workers.handlers import Handlers, TaskHandler
from workers.handlers.registry import BUILT_IN
from workers.sandbox.spec import Isolation

HERE = SandboxesHere(backend="bubblewrap", isolation=frozenset((Isolation.NONE, Isolation.ISOLATED)))
NOWHERE = SandboxesHere(backend="", isolation=frozenset(), why="no sandbox backend works here: no bubblewrap")


async def test_each_built_in_task_says_what_it_asks_and_those_of_the_demo_bring_twenty_problems() -> None:
    async with Handlers() as handlers:
        tasks = await listed_tasks(handlers, only=tuple(BUILT_IN))

    for task in tasks:
        assert not task.broken
        assert task.about
        assert task.layouts
        assert task.samples >= (20 if task.name in TASKS else 0)
    assert task_as_map(next(task for task in tasks if task.name == "code"), HERE)["sandbox"]["here"] is True
    said = "\n".join(task_lines(tasks, HERE))
    assert "one of any kind; bubblewrap serves it here" in said
    assert [*task_lines(tasks, NOWHERE)][-1] == NOWHERE.why


async def test_a_task_that_cannot_be_loaded_is_told_and_hides_no_other() -> None:
    def broken() -> TaskHandler:
        raise ImportError("no module named 'puzzles'")

    async with Handlers({"puzzles": broken}) as handlers:
        tasks = await listed_tasks(handlers, only=("math", "puzzles"))

    assert [(task.name, task.broken) for task in tasks] == [("math", ""), ("puzzles", "ImportError: no module named 'puzzles'")]
    assert "    cannot be loaded: ImportError: no module named 'puzzles'" in [*task_lines(tasks, None)]


async def test_a_page_shows_the_prompt_as_the_model_meets_it() -> None:
    async with Handlers() as handlers:
        handler = await handlers.find("math")
        template = JobTemplate(task="math", capability="isolated", options={"abs_tol": 0.5})

        page = task_page(handler, template, {"id": "sum", "question": "What is 3 + 4?", "answer": "7"})

    out = io.StringIO()
    render_page(Console(file=out, width=200), page, NOWHERE)
    shown = out.getvalue()
    assert "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n" in shown
    assert '{"type": "function", "function": {"name": "python"' in shown
    assert "reference  \\boxed{7}" in shown
    assert "isolated; no backend works here" in shown
    assert "options  abs_tol 0.5\n" in shown
    assert "  abs_tol         leeway for numbers, absolute (a number from 0, below 1; default 0)\n" in shown
    assert "GSM8K: answer, question" in shown
    told = page_as_map(page, HERE)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["python"]
    assert page.row is not None
    assert (told["sandbox"]["here"], told["reference"], told["tokens"]) == (True, "\\boxed{7}", page.row.n_tokens)
    assert (told["options"], [option["name"] for option in told["takes"]]) == (
        {"abs_tol": 0.5},
        ["tools", "reward_service", "abs_tol", "rel_tol"],
    )


async def test_a_row_that_is_no_problem_has_no_page() -> None:
    async with Handlers() as handlers:
        handler = await handlers.find("math")

        with pytest.raises(InvalidRequest, match="fit no layout"):
            task_page(handler, JobTemplate(task="math"), {"id": "x", "text": "hello"})


async def test_an_option_that_the_task_does_not_have_has_no_page() -> None:
    async with Handlers() as handlers:
        handler = await handlers.find("math")

        with pytest.raises(InvalidRequest, match="did you mean 'abs_tol'"):
            task_page(handler, JobTemplate(task="math", options={"abs-tol": 0.5}), None)


async def test_a_task_without_problems_says_what_it_is_all_the_same() -> None:
    """It refused: `harbor` ships none, and could not be looked at without a folder."""
    async with Handlers() as handlers:
        page = task_page(await handlers.find("harbor"), JobTemplate(task="harbor"), None)

    out = io.StringIO()
    render_page(Console(file=out, width=200), page, None)
    shown = out.getvalue()
    for said in ("task harbor  A task folder", "Harbor: instruction, tests, workdir", "  reward_key  which part", "max_turns", "--data"):
        assert said in shown
    told = page_as_map(page, None)
    assert (told["row"], told["tools"], told["prompt"]) == (None, None, None)
    assert [option["without"] for option in told["takes"]][:2] == ["none", "reward, or the only one"]
