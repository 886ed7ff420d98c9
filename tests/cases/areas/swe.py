"""Cases of repairs to repositories: logs, verdicts, patches, history and whole gradings. A module a group of kinds (`input.kind`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module

from tests.cases.case import BadCase, Case, Check, Difference

MODULES = {
    "parse_log": "swe_logs",
    "verdict": "swe_logs",
    "apply_patch": "swe_patches",
    "extract_patch": "swe_patches",
    "history": "swe_patches",
    "grade": "swe_grade",
}
"""Where a kind is checked: each module has an area of its own, opened when its first case comes."""
WITHOUT_SANDBOX = frozenset({"parse_log", "verdict"})


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """Each case through the area of its kind."""
    opened: dict[str, Check] = {}
    async with AsyncExitStack() as stack:

        async def check(case: Case) -> list[Difference]:
            kind = case.input.get("kind")
            if kind not in MODULES:
                raise BadCase(f"unknown kind {kind!r}, expected one of {', '.join(MODULES)}")
            name = MODULES[kind]
            if name not in opened:
                opened[name] = await stack.enter_async_context(import_module(f"tests.cases.areas.{name}").area())
            return await opened[name](case)

        yield check
