"""The task `stem` from a row to a grade, and from a job to its tools, without a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from tests.judged import judged, spec_of
from workers.graders.choice import LETTERS
from workers.handlers.registry import Handlers
from workers.handlers.stem.handler import SAMPLES, StemHandler
from workers.handlers.stem.problem import Kind
from workers.handlers.submission import submitted
from workers.handlers.task_data import load_rows, problem_in
from workers.tools.offline_search import Document, Index, OfflineSearch
from workers.tools.search import SearchSettings


@pytest.fixture
async def stem() -> AsyncIterator[StemHandler]:
    handler = StemHandler(SearchSettings())
    await handler.open()
    yield handler
    await handler.close()


async def test_every_sample_scores_with_its_answer_only(stem: StemHandler) -> None:
    for row in load_rows(SAMPLES[0], stem.layouts).rows:
        spec, problem = spec_of("stem", row), problem_in(row, stem.layouts)
        others = {
            Kind.CHOICE: [letter for place, letter in enumerate(LETTERS[: len(problem.options)]) if place != problem.right],
            Kind.VALUE: [f"-{problem.answers[0]} {problem.unit}", f"1{problem.answers[0]} {problem.unit}"],
            Kind.TEXT: [f"{problem.answers[0]} or not"],
            Kind.FORMULA: [f"2 + {problem.answers[0]}"],
        }[problem.kind]

        assert (await judged(stem, spec, stem.gold(spec))).reward == 1.0, row
        assert (await judged(stem, spec, stem.empty(spec))).reward == 0.0, row
        for other in (*others, "", problem.question):
            assert (await judged(stem, spec, submitted(rf"\boxed{{{other}}}"))).reward == 0.0, (row, other)


async def test_the_answer_may_be_handed_in_without_a_box(stem: StemHandler) -> None:
    spec = spec_of("stem", {"question": "How far?", "answer": "3", "unit": "km"})

    grades = [await judged(stem, spec, submitted(answer)) for answer in ("3000 m", "I think it is 3 km.\nYes.", r"3 km, no: \boxed{4 km}")]

    assert [(grade.reward, grade.details["extracted"]) for grade in grades] == [(1.0, "3000 m"), (0.0, None), (0.0, "4 km")]
    assert [grade.components["answered"] for grade in grades] == [1.0, 0.0, 1.0]


async def test_a_choice_is_right_by_letter_and_by_text_in_the_order_that_was_shown(stem: StemHandler) -> None:
    row = {"id": "x", "question": "Which?", "answer": "red", "options": ["red", "green", "blue", "white"]}
    spec = spec_of("stem", row)
    shown = stem.messages(spec)[-1].content
    letter = next(line[0] for line in shown.splitlines() if line.endswith(". red"))

    rewards = {answer: (await judged(stem, spec, submitted(rf"\boxed{{{answer}}}"))).reward for answer in (*"ABCD", "red", "green")}

    assert rewards == {**dict.fromkeys("ABCD", 0.0), "red": 1.0, "green": 0.0, letter: 1.0}


@pytest.mark.parametrize(
    ("fields", "options", "right", "wrong"),
    [
        ({}, {}, "2.02 m", "2.03 m"),
        ({}, {"rel_tol": 0.1}, "2.2 m", "2.3 m"),
        ({"rel_tol": 0.001}, {"rel_tol": 0.1}, "2.002 m", "2.02 m"),  # the row's own goes first
        ({}, {"abs_tol": 0.5}, "2.5 m", "2.6 m"),
    ],
)
async def test_the_leeway_is_the_rows_then_the_jobs_then_the_policys(
    stem: StemHandler, fields: dict[str, object], options: dict[str, object], right: str, wrong: str
) -> None:
    spec = spec_of("stem", {"question": "?", "answer": "2", "unit": "m", **fields}, options)

    assert (await judged(stem, spec, submitted(right))).reward == 1.0
    assert (await judged(stem, spec, submitted(wrong))).reward == 0.0


async def test_a_formula_is_compared_by_its_value(stem: StemHandler) -> None:
    spec = spec_of("stem", {"question": "?", "answer": r"\frac{1}{2}mv^2", "also": ["p^2/(2m)"]})

    rewards = [(await judged(stem, spec, submitted(rf"\boxed{{{answer}}}"))).reward for answer in ("0.5 m v^2", r"\frac{p^2}{2m}", "mv^2")]

    assert rewards == [1.0, 1.0, 0.0]


# ---- tools


@pytest.mark.parametrize(
    ("tools", "mentioned", "sandbox"),
    [
        (True, ("python", "finish"), True),
        (False, (), False),
        (["think"], (), False),
        (["web_search", "finish"], ("web_search", "finish"), False),
    ],
)
def test_the_prompt_names_the_tools_there_are(tools: object, mentioned: tuple[str, ...], sandbox: bool) -> None:
    spec = spec_of("stem", {"question": "?", "answer": "2"}, {"tools": tools})
    handler = StemHandler(SearchSettings())

    system = handler.messages(spec)[0].content

    assert [name for name in ("python", "web_search", "finish") if f"`{name}`" in system] == list(mentioned)
    assert (handler.sandbox_spec(spec) is not None) == sandbox


@pytest.mark.parametrize("tools", ["python", ["bash"], ["think", "think"], 7, [1]])
def test_tools_that_are_none_are_refused(tools: object) -> None:
    spec = spec_of("stem", {"question": "?", "answer": "2"}, {"tools": tools})

    with pytest.raises(InvalidRequest, match=r"options\.tools: expected true, false, or a list out of python, think, finish, web_search"):
        StemHandler(SearchSettings()).messages(spec)


async def test_a_search_without_a_service_is_refused_with_what_to_do(stem: StemHandler) -> None:
    spec = spec_of("stem", {"question": "?", "answer": "2"}, {"tools": ["web_search"]})

    with pytest.raises(InvalidRequest, match=r"no search service is set here: give the workers `url` of \[search\]"):
        stem.tools(spec, None)


async def test_the_search_goes_where_the_worker_says_whatever_the_job_says() -> None:
    async with OfflineSearch(Index([Document(title="Ions", url="ions.md", text="Ions have charge.")])) as server:
        handler = StemHandler(SearchSettings(url=server.url))
        await handler.open()
        try:
            spec = spec_of("stem", {"question": "?", "answer": "2"}, {"tools": ["think", "web_search"], "url": "http://127.0.0.1:1"})
            think, search = handler.tools(spec, None)
            found = await search({"query": "ions"}, timeout_s=10)
        finally:
            await handler.close()

    assert (think.name, search.name) == ("think", "web_search")
    assert found.text == "1. Ions\nions.md\nIons have charge."


async def test_the_settings_are_those_of_the_file_that_the_process_reads(tmp_path: Path) -> None:
    """Of `--config`, not of the folder in which the worker happens to run."""
    file = tmp_path / "rollstream.toml"
    file.write_text('[search]\nurl = "http://127.0.0.1:1"\n')
    spec = spec_of("stem", {"question": "?", "answer": "2"}, {"tools": ["web_search"]})

    async with Handlers(config=file) as handlers:
        handler = await handlers.find("stem")

        assert isinstance(handler, StemHandler)
        assert [tool.name for tool in handler.tools(spec, None)] == ["web_search"]
