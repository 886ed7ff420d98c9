"""The steps of `ops/launch test`, in the order CI runs them.

All tests but those of sandboxes are one step, `whole`: each run of pytest collects in every process and ends with one process that others
wait for. Tests of fleets wait for half of their time, and beside them the others have the cores. Its parts can be asked for by name.
The tests of sandboxes have a user of their own and so a pytest of their own. It runs beside `whole`: each of the two leaves a core
idle for a part of its time.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PROCESSES = min(8, 2 * _CORES)
"""Pytest processes, each with a server of its own. Tests wait for half of their time and more (leases, deadlines, processes that start),
so two share a core: on two cores the quick ones took 127 s in 2 processes, 92 in 3, 81 in 4 and 88 in 5. Each costs 3 s to collect what
there is."""
COMPANIES = min(4, _CORES + 1)
"""Of tests that have a company of processes each, and wait for them: in two at once those of `faults` take 230 s of processor
time in 440 s of tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One check: a module run by the environment's Python, in the project's folder."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    test_folders: tuple[str, ...] = ()
    """For pytest: folders and files under `tests/`, or patterns of them."""
    is_for_sandboxes: bool = False
    """Whether it needs the ground of the sandboxes' tests, and runs as the user of these. No other step runs what lies in its folders."""
    is_quick: bool = False
    """Whether `--quick` runs it."""
    is_part: bool = False
    """Whether the full run has its tests in a larger step; it is run by name only."""

    beside: str = ""
    """Name of the step that it runs beside, where both are asked for: what it says is shown after that one's."""

    @property
    def checks_alerts(self) -> bool:
        """Whether it has the tests of alerts, which want promtool."""
        return not self.is_for_sandboxes and "unit" in self.test_folders


SANDBOX_FOLDERS = (
    "contract/sandbox*",
    "integration/sandbox*",
    "integration/images*",
    "faults/*sandbox*",
    "cases/*sandbox*",
    "e2e/*sandbox*",
)
"""Tests that start sandboxes with walls, which root may not: folders, and files among others."""

COLLECT = ("-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "tests")

STEPS = (
    Step(name="format", module="ruff", arguments=("format", "--check"), is_quick=True),
    Step(name="lint", module="ruff", arguments=("check",), is_quick=True),
    Step(name="types", module="mypy", is_quick=True),
    Step(name="imports", module="ops.check_imports", is_quick=True),
    Step(
        name="whole",
        module="pytest",
        arguments=("-n", str(PROCESSES), "--dist", "worksteal"),
        test_folders=("unit", "integration", "contract", "model", "faults", "cases", "e2e"),
    ),
    Step(
        name="sandboxes",
        module="pytest",
        # the tree may be somebody else's: nothing is written into it
        arguments=("-n", str(COMPANIES), "--dist", "worksteal", "-p", "no:cacheprovider"),
        test_folders=SANDBOX_FOLDERS,
        is_for_sandboxes=True,
        beside="whole",
    ),
    Step(
        name="quick",
        module="pytest",
        # for root every test of a sandbox with walls is left out: their number is enough
        arguments=("-m", "not slow", "--hypothesis-profile", "quick", "-n", str(PROCESSES), "--dist", "worksteal", "-r", "fE"),
        test_folders=("unit", "integration", "contract", "cases"),
        is_quick=True,
    ),
    Step(
        name="tests",
        module="pytest",
        arguments=("-n", str(PROCESSES), "--dist", "worksteal"),
        test_folders=("unit", "integration", "contract", "model"),
        is_part=True,
    ),
    Step(name="faults", module="pytest", arguments=("-n", str(COMPANIES), "--dist", "worksteal"), test_folders=("faults",), is_part=True),
    Step(name="cases", module="pytest", arguments=("-n", str(PROCESSES), "--dist", "worksteal"), test_folders=("cases",), is_part=True),
    Step(name="e2e", module="pytest", arguments=("-n", str(COMPANIES), "--dist", "worksteal"), test_folders=("e2e",), is_part=True),
)


def choose(names: Sequence[str], *, quick: bool) -> list[Step]:
    """The steps asked for by name; without names all that belong to the full or to the quick run."""
    if names:
        return [step for step in STEPS if step.name in names]
    return [step for step in STEPS if (step.is_quick if quick else step.name != "quick" and not step.is_part)]
