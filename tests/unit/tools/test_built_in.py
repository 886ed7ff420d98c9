"""The built-in tools by name: their order, what they need, what they look like to a model."""

from __future__ import annotations

import pytest

from workers.tools import BUILT_IN, BashTool, EditorTool, FinishTool, PythonTool, ThinkTool, Tool, ToolSet, WorkingFolder, tools_called

CLASSES = (BashTool, PythonTool, EditorTool, ThinkTool, FinishTool)


def test_names_are_those_that_the_tools_have() -> None:
    assert tuple(made.name for made in CLASSES) == BUILT_IN


def test_tools_come_in_the_order_of_their_names_and_anew_each_time() -> None:
    first, second = tools_called(("finish", "think"), None), tools_called(("finish", "think"), None)

    assert [tool.name for tool in first] == ["finish", "think"]
    assert all(a is not b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("name", "words"), [("bsh", "bash, python, str_replace_editor, think, finish"), ("bash", "needs a sandbox")])
def test_a_tool_that_cannot_be_had_is_named(name: str, words: str) -> None:
    with pytest.raises(LookupError, match=words):
        tools_called(("think", name), None)


@pytest.mark.parametrize("made", CLASSES)
def test_a_tool_tells_each_argument_to_the_model(made: type[Tool]) -> None:
    properties = made.parameters["properties"]  # type: ignore[index]  # of the class, not of one of them

    assert made.parameters["type"] == "object"  # type: ignore[index]
    assert set(made.parameters["required"]) <= set(properties)  # type: ignore[index]
    assert all(argument["description"] and argument["type"] for argument in properties.values())
    assert str(made.description).endswith(".")


async def test_a_thought_is_answered_and_leaves_nothing() -> None:
    tools = ToolSet([ThinkTool()])

    answer = await tools["think"]({"thought": "perhaps"}, timeout_s=0)

    assert (answer.is_error, answer.ends, answer.details) == (False, False, {})
    assert "perhaps" not in answer.text
    assert "missing" in tools.complaint("think", {})


def test_a_tool_goes_where_another_moved_and_not_where_it_is() -> None:
    folder = WorkingFolder()

    assert folder.move_for("") == ""  # nobody has moved
    folder.path = "/a"
    assert folder.move_for("") == "/a"
    assert folder.move_for("/a") == ""
    assert folder.move_for("/b") == "/a"
