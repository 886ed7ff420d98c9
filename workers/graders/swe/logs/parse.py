"""From the name of a runner to its parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workers.graders.swe.logs.cargo_log import parse_cargo
from workers.graders.swe.logs.go_log import parse_go
from workers.graders.swe.logs.jest_log import parse_jest
from workers.graders.swe.logs.parsed import ParsedLog
from workers.graders.swe.logs.pytest_log import parse_pytest
from workers.graders.swe.logs.sympy_log import parse_sympy
from workers.graders.swe.logs.unittest_log import parse_unittest

_PARSERS: Mapping[str, Callable[[str], ParsedLog]] = {
    "pytest": parse_pytest,
    "unittest": parse_unittest,
    "django": parse_unittest,  # its runner is unittest's, with more printed in between
    "go": parse_go,
    "jest": parse_jest,
    "cargo": parse_cargo,
    "sympy": parse_sympy,
}
FRAMEWORKS = tuple(_PARSERS)


class UnknownFramework(ValueError):
    """No parser of that name; the task's data is at fault."""


def parse_log(framework: str, log: str) -> ParsedLog:
    """Reads a whole log; one that was cut must not be read, as a missing end would be told as a failure.

    Args:
        framework: one of `FRAMEWORKS`.
        log: both streams as they came; colours and carriage returns are dropped.

    Raises:
        UnknownFramework: no parser has that name.
    """
    parse = _PARSERS.get(framework)
    if parse is None:
        raise UnknownFramework(f"no parser for logs of {framework!r}; there are: {', '.join(FRAMEWORKS)}")
    return parse(log)
