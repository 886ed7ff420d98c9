"""What a worker process needs to know beside the queue."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pipeline.messages import Stage
from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings
from pipeline.usable_cores import usable_cores

SLOTS_A_CORE = {Stage.INIT: 2, Stage.RUN: 16, Stage.EVAL: 2}
"""RUN waits for the model most of the time; INIT and EVAL work."""
MOST_DEFAULT_SLOTS = {Stage.INIT: 64, Stage.RUN: 256, Stage.EVAL: 64}
"""One process has one event loop; a node of many cores has several processes of a stage."""


def default_node() -> str:
    """Name of this node: the host, and the Slurm job when there is one, so that two allocations on a host do not meet."""
    host = socket.gethostname().split(".")[0] or "localhost"
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{host}-{job}" if job else host


class WorkerSettings(TableSettings):
    """Settings of one worker process."""

    table = "worker"
    variables = f"{ENVIRONMENT_PREFIX}WORKER_"

    stage: Stage
    slots: int = Field(default=0, ge=0, le=4096)
    """Jobs at once; 0 = by the stage and the cores that this process may use."""
    adaptive: bool = True
    """RUN: fewer jobs of a run call the model while its servers are under pressure. Off: `slots` of them, always."""
    min_slots: int = Field(default=1, ge=1, le=4096)
    """RUN: so many jobs of each run may call the model, whatever the pressure."""
    node: str = Field(default_factory=default_node, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    index: int = Field(default=0, ge=0)
    """Which of the stage's processes on this node: part of the stable name."""
    grace_s: float = Field(default=30.0, ge=0)
    """After the first SIGTERM running jobs have this long before they are handed back."""
    capabilities: tuple[str, ...] = ()
    """Classes of jobs that INIT takes here; empty = what the node's sandbox service says that it can."""
    scratch_dir: Path | None = None
    """Where names are locked, and a service that this worker starts keeps its sandboxes; default: the scratch folder of this machine."""
    sandboxes: bool = True
    """Whether workers have sandboxes of the node's service. Off: jobs that need one are handed back."""
    model_key_file: Path | None = None
    """File with the key of the model servers."""
    measures_dir: Path | None = None
    """Where this process keeps its measures for the launcher of its node, which sets it; none = nobody reads them."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.stage is Stage.RUN and self.min_slots > self.slot_count:
            raise ValueError(f"min_slots is {self.min_slots}, expected at most slots ({self.slot_count})")
        return self

    @property
    def consumer(self) -> str:
        """The stable name of this process in the queue."""
        return f"{self.stage.value}-{self.node}-{self.index}"

    @property
    def slot_count(self) -> int:
        return self.slots or min(MOST_DEFAULT_SLOTS[self.stage], SLOTS_A_CORE[self.stage] * usable_cores())
