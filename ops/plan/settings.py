"""The goal and the latencies that `rollstream plan` sizes for: table `[plan]`, in the environment `ROLLSTREAM_PLAN_<NAME>`."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import ENVIRONMENT_PREFIX, TableSettings


class PlanSettings(TableSettings):
    """A goal, and how long the parts of a job take. Times, tokens and shares are means."""

    table = "plan"
    variables = f"{ENVIRONMENT_PREFIX}PLAN_"

    groups: int = Field(default=64, ge=1, le=1_000_000)
    """Groups that a step trains on."""
    group_size: int = Field(default=8, ge=1, le=4096)
    """Jobs of a group."""
    step_s: float = Field(default=120.0, gt=0, le=1e7)
    """From a step to the next."""
    filtered: float = Field(default=0.3, ge=0, le=0.99)
    """Share of closed groups that the informativeness policy filters out."""
    wasted: float = Field(default=0.05, ge=0, le=0.99)
    """Share of jobs that are cancelled, expire or break."""
    turns: float = Field(default=4.0, ge=1, le=10_000)
    """Model calls of a job."""
    prompt_tokens: float = Field(default=1000.0, ge=1, le=1e7)
    """Before the first turn."""
    sampled_tokens: float = Field(default=300.0, ge=1, le=1e7)
    """Of a turn."""
    observation_tokens: float = Field(default=200.0, ge=0, le=1e7)
    """That a turn's tools answer."""
    init_s: float = Field(default=2.0, ge=0, le=1e6)
    """Of INIT, its own time: no queue."""
    model_s: float = Field(default=6.0, ge=0, le=1e6)
    """Of a model call, at `server_calls` at once."""
    tool_s: float = Field(default=1.0, ge=0, le=1e6)
    """Of all that RUN does between two model calls."""
    eval_s: float = Field(default=2.0, ge=0, le=1e6)
    """Of EVAL, its own time."""
    server_calls: int = Field(default=64, ge=1, le=1_000_000)
    """Calls that a model server has at once."""
    unread_steps: float = Field(default=2.0, ge=0, le=10_000)
    """Steps whose results wait for their trainer, or are being trained on."""
    reserve: int = Field(default=2000, ge=0, le=100_000_000)
    """Prompts that were fed and wait to be drawn."""
    head_room: float = Field(default=0.25, ge=0, lt=1)
    """Share of slots, model servers and memory that is left free."""
    cores: int = Field(default=0, ge=0, le=4096)
    """Of a node, for its size where `[node]` says none; 0 = as many as this machine has."""
