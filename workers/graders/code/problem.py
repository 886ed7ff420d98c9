"""Problems as the grader takes them: the tests, and what a program may use for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workers.graders.code.inside.runner import STACKS
from workers.sandbox.spec import Limits as SandboxLimits

MIB = 1024**2
BESIDE_BYTES = 192 * MIB
"""For what runs a test beside the program, and for the program's files in memory."""
BESIDE_PROCESSES = 16
MOST_FILES = 4_000
"""Files and folders that a program may have at once, wherever it may write. Solutions have none, and more would take longer to remove."""
FILES_OF_OUTPUT, LEAST_DISK_BYTES = 32, 16 * MIB
NICE = 1
"""Still behind the worker. A program that waits long for a core cannot be judged and is run again, which costs more than it waited."""


BOUNDS: Mapping[str, tuple[float, int]] = {
    "time_s": (0.05, 600),
    "memory_mb": (32, 65_536),
    "output_bytes": (1, 256 * MIB),
    "processes": (1, 4_096),
}
"""Of `RunLimits`, by name: the least and the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What one test may use."""

    time_s: float = 4.0
    """By the clock, less what it waited for a core on a busy machine; about as much CPU in each process."""
    memory_mb: int = 512
    """Private memory of each process, in MiB."""
    output_bytes: int = 2_000_000
    """Of standard output, and of any other file it writes."""
    processes: int = 64
    """Processes and threads at once, the program's own first one included."""

    @property
    def disk_bytes(self) -> int:
        """Of all files that it has at once."""
        return LEAST_DISK_BYTES + FILES_OF_OUTPUT * self.output_bytes

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {least} to {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioTest:
    """What a program is given on standard input, and what it must print."""

    stdin: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTest:
    """What a function is called with, and what it must return."""

    arguments: Sequence[object]
    accepted: Sequence[object]
    """Any of these values is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertTest:
    """A program that tests a function: it raises nothing when the function is right. It knows the expected values, so it never runs where
    the function does (`asserts.py`)."""

    source: str
    """Runs after `setup`; its failed `assert` is a wrong answer."""
    setup: str = ""


Test = StdioTest | CallTest | AssertTest


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """All that a program is judged by."""

    tests: Sequence[Test]
    entry: str = ""
    """What is called: `name` or `Class.method`; for programs that are only run, empty. Tests that assert know it as `candidate` too."""
    limits: RunLimits = RunLimits()
    float_tol: float | None = None
    """Leeway for numbers with a point, absolute or relative, whichever is more; None = they must be equal as they are written."""
    language: Literal["python"] = "python"

    def __post_init__(self) -> None:
        if self.float_tol is not None and not 0 <= self.float_tol < 1:
            raise ValueError(f"float_tol is {self.float_tol}, expected 0 to below 1")
        if not self.entry and any(isinstance(test, CallTest) for test in self.tests):
            raise ValueError("a test that calls needs the name of what it calls: entry is empty")


def sandbox_limits(limits: RunLimits, at_once: int) -> SandboxLimits:
    """Bounds of a sandbox in which so many tests run at once: above what each of them is bounded to by itself."""
    each_bytes = limits.memory_mb * MIB + BESIDE_BYTES
    return SandboxLimits(
        cpu_s=int(limits.time_s) + 60,
        memory_bytes=each_bytes + STACKS * limits.memory_mb * MIB,
        file_bytes=2 * limits.output_bytes + BESIDE_BYTES,
        sandbox_memory_bytes=at_once * each_bytes + BESIDE_BYTES,
        processes=at_once * (limits.processes + BESIDE_PROCESSES) + BESIDE_PROCESSES,
        disk_bytes=at_once * 8 * (limits.output_bytes + BESIDE_BYTES),
        files=50_000,
        nice=NICE,
    )
