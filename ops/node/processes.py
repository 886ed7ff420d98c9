"""The processes of a node, as commands. The demo starts the same ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.messages import Stage

SERVICE = "sandboxes"
SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process of a node."""

    name: str
    """In logs, and of its log file."""
    arguments: tuple[str, ...]
    """Of the command `rollstream`."""
    stage: Stage | None = None
    """Of a worker."""
    index: int = 0
    slots: int = 0


def rollstream_command(plan: ProcessPlan) -> list[str]:
    """What runs it in this environment."""
    return [sys.executable, "-m", "ops.cli", *plan.arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What the processes of one node have in common."""

    node: str
    grace_s: float
    """Of a worker: what its launcher gives the whole node. When it is to hand back before, the launcher says so."""
    config: Path | None = None
    log_level: str = "info"

    def service(self) -> ProcessPlan:
        """The sandbox service."""
        return ProcessPlan(SERVICE, ("sandbox", "serve", "--node", self.node, *self._common()))

    def supervisor(self) -> ProcessPlan:
        """A supervisor."""
        return ProcessPlan(SUPERVISOR, ("supervisor", "run", "--name", self.node, *self._common()))

    def worker(self, stage: Stage, index: int, slots: int) -> ProcessPlan:
        """A worker process."""
        words = (
            "--stage",
            stage.value,
            "--node",
            self.node,
            "--index",
            str(index),
            "--slots",
            str(slots),
            "--grace-s",
            f"{self.grace_s:g}",
        )
        return ProcessPlan(f"{stage.value}-{index}", ("worker", "run", *words, *self._common()), stage, index, slots)

    def _common(self) -> Sequence[str]:
        config = ("--config", str(self.config)) if self.config else ()
        return (*config, "--log-level", self.log_level)
