"""The scenarios of the redis cases, by the id of the case: each plays its story on the product and says what came out differently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.cases.case import Case, Difference

Scenario = Callable[[Case], Awaitable[list[Difference]]]

SCENARIOS: dict[str, Scenario] = {}
"""Filled by `scenario`."""


def scenario(case_id: str) -> Callable[[Scenario], Scenario]:
    """Marks the function that plays the case `case_id`."""

    def mark(play: Scenario) -> Scenario:
        if case_id in SCENARIOS:
            raise ValueError(f"two scenarios for {case_id}")
        SCENARIOS[case_id] = play
        return play

    return mark
