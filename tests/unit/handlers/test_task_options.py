"""Options of tasks: what a task declares is all it takes, and a slip is told with what was meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.messages import Grade, JobTemplate, Trajectory
from workers.handlers.base import EvalContext, RunContext, TaskHandler
from workers.handlers.registry import BUILT_IN
from workers.handlers.task_options import BadOption, Kind, Number, OneOf, Option, Text, TextsByName, Tools, Truth, Whole, check_options

PAGE = Path(__file__).parents[3] / "docs/reference/tasks.md"
LOUD = Option(name="loud", takes=Truth(), default=False, about="whether the model shouts")
PACE = Option[float | None](name="pace_s", takes=Number(above=0, below=60), default=None, without="*none*", about="seconds between words")
DECLARED = (LOUD, PACE)


def an_option(takes: Kind[object]) -> Option[object]:
    return Option[object](name="it", takes=takes, default=None, about="")


def part_of_page(task: str) -> str:
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(f"{task}\n"))


class Singing(TaskHandler):
    name = "singing"

    async def run(self, context: RunContext) -> Trajectory:
        raise AssertionError("nobody sings here")

    async def evaluate(self, context: EvalContext) -> Grade:
        raise AssertionError("nobody listens")


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_task_declares_what_the_page_of_tasks_has(name: str) -> None:
    options = BUILT_IN[name]().options
    assert options is not None

    _, _, table = part_of_page(name).partition("| option | type | default | meaning |")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)

    told = [(row[0], row[1], row[2], re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", row[3])) for row in rows]
    assert told == [(option.name, option.takes.words, option.default_words, option.about) for option in options]


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ("gym", "harbor")])
def test_the_page_of_tasks_names_layouts_as_the_commands_do(name: str) -> None:
    """Their own one was called ours, rollstream, and own."""
    _, _, table = part_of_page(name).partition("| layout | told by |")
    rows = re.findall(r"^\| ([^|]+) \|.*\|$", table.partition("\n\n")[0], re.MULTILINE)

    assert sorted(", ".join(rows[1:]).split(", ")) == sorted(layout.name for layout in BUILT_IN[name]().layouts)


def test_options_are_read_with_their_defaults() -> None:
    assert (LOUD.in_options({}), LOUD.in_options({"loud": True}), LOUD.in_options({"loud": None})) == (False, True, False)
    assert (PACE.in_options({}), PACE.in_options({"pace_s": 3})) == (None, 3.0)


def test_a_misspelt_option_is_refused_with_what_was_meant_and_all_slips_are_told_at_once() -> None:
    with pytest.raises(BadOption) as refused:
        check_options("singing", DECLARED, {"laud": True, "pace_s": 60, "key": "C"})

    assert refused.value.field == "options.laud"
    assert str(refused.value) == (
        "options.laud: the task singing has no such option; did you mean 'loud'?; "
        "options.pace_s: expected a number above 0, below 60, got 60 (int); "
        "options.key: the task singing has no such option; known are loud, pace_s"
    )


def test_a_handler_that_declares_nothing_takes_anything_and_one_that_declares_none_takes_none() -> None:
    class Mute(Singing):
        options = ()

    Singing().check_options({"laud": 3})
    Mute().check_options({})
    with pytest.raises(BadOption, match="no such option; there are none"):
        Mute().check_options({"laud": 3})


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        (Truth(), {True: True, False: False}, [0, 1, "true", []]),
        (Number(), {0: 0.0, 2.5: 2.5}, [-0.1, True, "1", float("nan"), float("inf")]),
        (Number(least=1, most=2), {1: 1.0, 2: 2.0}, [0.9, 2.1]),
        (Whole(least=1, most=9), {1: 1, 9.0: 9}, [0, 10, 1.5, True, "1", float("nan")]),
        (Text(), {"": "", "a": "a"}, [1, []]),
        (Text(least_chars=1), {"a": "a"}, [""]),
        (OneOf(("a", "b")), {"a": "a"}, ["c", ["a"], 1]),
        (Tools(usual=("a",), more=("b",)), {True: ("a",), False: (), ("b", "a"): ("b", "a")}, [["c"], ["a", "a"], "a", [["a"]], {"a": 1}]),
    ],
)
def test_a_value_of_another_kind_is_refused(
    option: Truth | Number | Whole | Text | OneOf | Tools, good: Mapping[object, object], bad: list[object]
) -> None:
    assert {value: option.read(value) for value in good} == good
    for value in bad:
        with pytest.raises(BadOption, match=r"options\.it: expected "):
            an_option(option).in_options({"it": value})


def test_texts_by_name_are_texts_on_both_sides() -> None:
    assert TextsByName().read({"a": "b"}) == {"a": "b"}
    for bad in ({"a": 1}, {1: "a"}, ["a"], "a"):
        with pytest.raises(BadOption, match=r"options\.it: expected texts by name"):
            an_option(TextsByName()).in_options({"it": bad})


def test_the_defaults_of_built_in_tasks_are_values_that_they_take() -> None:
    """A default that its own kind refuses would be one that nobody can say."""
    for name, make in BUILT_IN.items():
        for option in make().options or ():
            if option.default not in (None, "", 0):
                assert option.takes.read(option.default) == option.default, (name, option.name)
            else:
                assert option.default_words, (name, option.name)
    assert JobTemplate(task="math").options == {}
