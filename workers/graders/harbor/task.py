"""What a task of Harbor is, without where it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TEST_SCRIPT = "test.sh"
SOLUTION_SCRIPT = "solve.sh"


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of `tests/` or `solution/`."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One task."""

    name: str
    instruction: str
    image: str
    """`docker_image` of its environment; empty = it has a Dockerfile alone."""
    workdir: str
    """Where the agent and the tests start."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the environment."""
    tests: Mapping[str, TaskFile]
    """By path below `tests/`; one is `test.sh`."""
    solution: Mapping[str, TaskFile] = field(default_factory=dict)
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    verifier_timeout_s: float = 600.0
    memory_mb: int = 0
    """0 = nothing is said."""
    storage_mb: int = 0
