"""What a job template may say to the task `code` in `options`, read once and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.errors import InvalidRequest
from workers.graders.code import CodeTests, RunLimits

TOOLS = ("bash", "python", "str_replace_editor", "think", "finish")
_LIMITS = ("time_s", "memory_mb", "output_bytes", "processes")
_KNOWN = frozenset((*_LIMITS, "tools", "solution_file", "reward", "reward_service", "stop_at_failure", "max_tests", "float_tol", "image"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOptions:
    """The options of one job."""

    tools: tuple[str, ...] = TOOLS
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


def read_options(options: Mapping[str, object]) -> CodeOptions:
    """The options, with what is wrong in them.

    Raises:
        InvalidRequest: an unknown one, or one of another type.
    """
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise InvalidRequest(f"unknown options {', '.join(unknown)}; known are {', '.join(sorted(_KNOWN))}", field="options")
    limits = {name: _number(options, name) for name in _LIMITS if name in options}
    found = CodeOptions(
        tools=_tools(options.get("tools", True)),
        solution_file=_text(options, "solution_file"),
        reward=_reward(options.get("reward", "all")),
        stop_at_failure=_truth(options, "stop_at_failure"),
        max_tests=int(_number(options, "max_tests")) if "max_tests" in options else 0,
        image=_text(options, "image"),
        limits={name: value if name == "time_s" else int(value) for name, value in limits.items()},
        float_tol=float(_number(options, "float_tol")) if "float_tol" in options else None,
    )
    if found.solution_file and not set(found.tools) & {"bash", "python", "str_replace_editor"}:
        raise InvalidRequest("a solution in a file needs a tool that writes files", field="options.solution_file")
    if found.stop_at_failure and found.reward != "all":
        raise InvalidRequest("stops at the first failure, so there is no fraction: reward has to be 'all'", field="options.stop_at_failure")
    return found


def _tools(value: object) -> tuple[str, ...]:
    if value is True:
        return TOOLS
    if value is False:
        return ()
    if not isinstance(value, list | tuple) or not set(value) <= set(TOOLS):
        raise InvalidRequest(f"expected true, false or some of {', '.join(TOOLS)}, got {value!r}", field="options.tools")
    return tuple(name for name in TOOLS if name in value)


def _reward(value: object) -> Literal["all", "fraction"]:
    if value == "all":
        return "all"
    if value == "fraction":
        return "fraction"
    raise InvalidRequest(f"expected 'all' or 'fraction', got {value!r}", field="options.reward")


def _text(options: Mapping[str, object], name: str) -> str:
    value = options.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(f"expected a text, got {value!r}", field=f"options.{name}")
    return value


def _truth(options: Mapping[str, object], name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"expected true or false, got {value!r}", field=f"options.{name}")
    return value


def _number(options: Mapping[str, object], name: str) -> float | int:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidRequest(f"expected a number, 0 or more, got {value!r}", field=f"options.{name}")
    return value
