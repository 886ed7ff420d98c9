"""What requests may say to the task `code` in `options`, and all of it together as one job has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.errors import InvalidRequest
from pipeline.messages import Json
from workers.graders.code import CodeTests, RunLimits
from workers.graders.code.problem import BOUNDS
from workers.handlers.reward_service import REWARD_SERVICE
from workers.handlers.task_options import BadOption, Number, OneOf, Option, Text, Tools, Truth, Whole

EVERY_TOOL = ("bash", "python", "str_replace_editor", "think", "finish")
WRITE_FILES = frozenset(("bash", "python", "str_replace_editor"))


def _bound(name: str, about: str) -> Option[int | None]:
    least, most = BOUNDS[name]
    return Option(name=name, takes=Whole(least=int(least), most=most), default=None, without="*the row's*", about=about)


TOOLS = Option(name="tools", takes=Tools(usual=EVERY_TOOL), default=EVERY_TOOL, about="what the model may call; `true` is the default")
SOLUTION_FILE = Option(
    name="solution_file", takes=Text(), default="", without="*none*", about="this file of the working folder is the program"
)
REWARD = Option(
    name="reward",
    takes=OneOf(("all", "fraction")),
    default="all",
    about="`all`: 1 when every test is accepted; `fraction`: accepted tests of all tests",
)
STOP_AT_FAILURE = Option(name="stop_at_failure", takes=Truth(), default=False, about="with `all`: run no test after the first that fails")
MAX_TESTS = Option(name="max_tests", takes=Whole(), default=0, without="*all*", about="the first so many tests of a row")
TIME_S = Option[float | None](
    name="time_s",
    takes=Number(least=BOUNDS["time_s"][0], most=BOUNDS["time_s"][1]),
    default=None,
    without="*the row's*",
    about="seconds of one test; goes before what the row says",
)
MEMORY_MB = _bound("memory_mb", "MiB of one test; goes before what the row says")
OUTPUT_BYTES = _bound("output_bytes", "output of one test; goes before what the row says")
PROCESSES = _bound("processes", "processes of one test; goes before what the row says")
FLOAT_TOL = Option[float | None](
    name="float_tol",
    takes=Number(),
    default=None,
    without="*the row's*",
    about="leeway for numbers with a point; goes before what the row says",
)
IMAGE = Option(
    name="image", takes=Text(), default="", without="*the node's own programs*", about="for the agent's and for the tests' sandbox"
)
SERVICE = replace(REWARD_SERVICE, about="a service of the workers judges the program in place of the tests")
OPTIONS: tuple[Option[Any], ...] = (  # of several kinds
    TOOLS,
    SOLUTION_FILE,
    REWARD,
    STOP_AT_FAILURE,
    MAX_TESTS,
    TIME_S,
    MEMORY_MB,
    OUTPUT_BYTES,
    PROCESSES,
    FLOAT_TOL,
    IMAGE,
    SERVICE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOptions:
    """The options of one job."""

    tools: tuple[str, ...] = EVERY_TOOL
    solution_file: str = ""
    """The program is this file of the agent's working folder; empty = it is in the final message."""
    reward: Literal["all", "fraction"] = "all"
    stop_at_failure: bool = False
    max_tests: int = 0
    """The first ones; 0 = all."""
    image: str = ""
    limits: Mapping[str, float | int] | None = None
    float_tol: float | None = None

    def applied(self, tests: CodeTests) -> CodeTests:
        """The tests of a row under these options, which go before what the row says."""
        kept = tests.tests[: self.max_tests] if self.max_tests else tests.tests
        try:
            limits: RunLimits = replace(tests.limits, **(self.limits or {}))  # type: ignore[arg-type]  # numbers by name, checked by the class
            return replace(tests, tests=kept, limits=limits, float_tol=tests.float_tol if self.float_tol is None else self.float_tol)
        except ValueError as refused:
            raise InvalidRequest(str(refused), field="options") from refused


def read_options(options: Json) -> CodeOptions:
    """The options of a job.

    Raises:
        BadOption: one of another kind, or two that do not go together.
    """
    limits = {option.name: option.in_options(options) for option in (TIME_S, MEMORY_MB, OUTPUT_BYTES, PROCESSES)}
    tools = TOOLS.in_options(options)
    found = CodeOptions(
        tools=tuple(name for name in EVERY_TOOL if name in tools),
        solution_file=SOLUTION_FILE.in_options(options),
        reward="fraction" if REWARD.in_options(options) == "fraction" else "all",
        stop_at_failure=STOP_AT_FAILURE.in_options(options),
        max_tests=MAX_TESTS.in_options(options),
        image=IMAGE.in_options(options),
        limits={name: value for name, value in limits.items() if value is not None},
        float_tol=FLOAT_TOL.in_options(options),
    )
    if found.solution_file and not set(found.tools) & WRITE_FILES:
        raise BadOption("a solution in a file needs a tool that writes files", field="options.solution_file")
    if found.stop_at_failure and found.reward != "all":
        raise BadOption("stops at the first failure, so there is no fraction: reward has to be 'all'", field="options.stop_at_failure")
    return found
