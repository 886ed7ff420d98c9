"""Who is on the stack when a reporter speaks: looked at frame by frame, in the thread in which it began."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workers.graders.swe.reporters import channel

REPORTER = "def speak(stack):\n    return say(stack)\n"


@pytest.fixture
def speak() -> Callable[[Any], str]:
    """A reporter's function, which asks the stack from one call further in, as `send` does."""
    ours: dict[str, Any] = {"say": lambda stack: stack.stranger(2), "__name__": "reporter"}
    exec(compile(REPORTER, "/elsewhere/reporter.py", "exec"), ours)
    spoken: Callable[[Any], str] = ours["speak"]
    return spoken


@pytest.fixture
def stack(speak: Any, tmp_path: Path) -> Any:
    made: Any = channel.Stack(speak.__globals__, str(tmp_path), True)  # type: ignore[no-untyped-call]  # it runs under old Pythons
    made.trust_frames(sys._getframe())
    return made


def caller(path: str) -> Callable[..., Any]:
    """A function of a file, that calls what it is given."""
    there: dict[str, Any] = {}
    exec(compile("def call(what, *more):\n    return what(*more)\n", path, "exec"), there)
    found: Callable[..., Any] = there["call"]
    return found


def test_the_runner_may_have_it_speak(speak: Any, stack: Any, tmp_path: Path) -> None:
    assert speak(stack) == ""
    assert caller("/usr/lib/runner.py")(speak, stack) == ""
    assert caller(f"{tmp_path}/.venv/lib/python3.11/site-packages/_pytest/runner.py")(speak, stack) == ""
    assert caller(f"{tmp_path}/tests/conftest.py")(speak, stack) == ""


def test_the_repository_may_not_however_far_down_it_is(speak: Any, stack: Any, tmp_path: Path) -> None:
    inside = caller(f"{tmp_path}/calc.py")

    assert inside(speak, stack) == f"{tmp_path}/calc.py"
    assert inside(caller("/usr/lib/runner.py"), speak, stack) == f"{tmp_path}/calc.py"


def test_a_file_by_its_name_alone_is_of_the_repository(speak: Any, stack: Any) -> None:
    assert caller("calc.py")(speak, stack) == "calc.py"


def test_code_that_says_it_is_the_runner_s_is_of_the_module_that_made_it(speak: Any, stack: Any, tmp_path: Path) -> None:
    disguised = caller("/usr/lib/runner.py")
    disguised.__globals__["__file__"] = f"{tmp_path}/calc.py"

    assert disguised(speak, stack) == f"{tmp_path}/calc.py"


def test_what_was_there_when_it_began_may(speak: Any, stack: Any, tmp_path: Path) -> None:
    """A script of the repository that starts pytest; another function of the same text is another one."""
    script, other = caller(f"{tmp_path}/run_tests.py"), caller(f"{tmp_path}/calc.py")
    script(lambda: stack.trust_frames(sys._getframe()))

    assert script(speak, stack) == ""
    assert other(speak, stack) == f"{tmp_path}/calc.py"


def test_a_plugin_of_the_repository_may(speak: Any, stack: Any, tmp_path: Path) -> None:
    plugin = ModuleType("plugin")
    plugin.__file__ = f"{tmp_path}/plugins/plugin.py"
    stack.trust_files(plugin)

    assert caller(plugin.__file__)(speak, stack) == ""
    assert caller(f"{tmp_path}/plugins/calc.py")(speak, stack) == f"{tmp_path}/plugins/calc.py"


def test_whoever_speaks_in_its_place_is_told(stack: Any) -> None:
    assert (lambda: stack.stranger(1))() == __file__


def test_another_thread_may_not(speak: Any, stack: Any) -> None:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(speak(stack)))
    thread.start()
    thread.join()

    assert said == ["another thread"]
