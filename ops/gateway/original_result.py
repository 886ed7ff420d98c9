"""The result of `/process`: the original's fields with their meaning, and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops.gateway.original_messages import original_messages
from ops.gateway.original_request import Asked
from pipeline.messages import Grade, JobResult, Outcome, StopReason, Trajectory

RESOLVED_ABOVE = 0.99
"""A reward above counts as solved, there and here."""
TIMES = (StopReason.TIME, StopReason.DEADLINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that has ended, with what its answer is made of."""

    record: JobResult
    trajectory: Trajectory | None
    grade: Grade | None
    failed_stage: str
    """Of an attempt that failed: `init`, `run` or `eval`; empty = none did."""
    failure: str
    """What it failed of; empty = nothing."""


def original_result(asked: Asked, ended: Ended, tools: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The body of the answer.

    Args:
        tools: what the model could call.
    """
    record, trajectory = ended.record, ended.trajectory
    success = record.outcome is Outcome.OK
    critical = critical_error(ended)
    error = None if success else _error(ended)
    messages = [] if trajectory is None else original_messages(trajectory, with_tokens=asked.with_tokens)
    result: dict[str, object] = {
        "instance_id": asked.instance_id,
        "trajectory_id": asked.trajectory_id,
        "messages": messages,
        "tools": list(tools),
        "end_properly": _ended_properly(trajectory),
        "success": success,
        "error": error,
        "finish": record.stop == StopReason.FINISHED,
        "git_patch": None if trajectory is None else _patch(trajectory),
        "resolved": record.reward is not None and record.reward > RESOLVED_ABOVE,
        "critical_error": critical,
        "traceback": ended.failure if critical is not None and ended.failure else None,
        "filter": not success,
        "timing": timing(record, timed_out=critical == "timeout"),
        "job_id": asked.job_id,
        "outcome": record.outcome.value,
        "reason": record.reason,
        "stop": record.stop,
        "reward": record.reward,
        "components": dict(record.components),
        "turns": record.turns,
        "sampled_tokens": record.sampled_tokens,
        "total_tokens": record.total_tokens,
        "versions": [record.first_version, record.last_version],
        "n_segments": 0 if trajectory is None else len(trajectory.segments),
        "not_used": asked.not_used,
        "warnings": asked.warnings,
    }
    if asked.return_tokens:
        result["segments"] = [] if trajectory is None else trajectory.segments
    return result


def critical_error(ended: Ended) -> str | None:
    """Where the environment, rather than the model, broke; `timeout` where a limit of time did it."""
    record = ended.record
    if record.outcome is Outcome.EXPIRED or record.stop in TIMES:
        return "timeout"
    if record.outcome is Outcome.INFRA_FAILURE:
        if ended.failed_stage in ("init", "run", "eval"):
            return ended.failed_stage
        return "eval" if record.run_attempt else "run"
    return None


def timing(record: JobResult, *, timed_out: bool) -> dict[str, object]:
    """Seconds a stage, and what waiting took."""
    seconds = {stage: record.seconds.get(stage, 0.0) for stage in ("init", "run", "eval")}
    counted = sum(seconds.values())
    return {
        **{f"{stage}_time": value for stage, value in seconds.items()},
        "others_time": max(0.0, round(record.seconds.get("total", 0.0) - counted, 3)),
        "counted_elapsed": counted,
        "timeout_triggered": timed_out,
    }


def _error(ended: Ended) -> str:
    record = ended.record
    what = {
        Outcome.MODEL_FAILURE: "limit or fault of the model",
        Outcome.INFRA_FAILURE: "failure of the infrastructure",
        Outcome.CANCELLED: "cancelled",
        Outcome.EXPIRED: "out of time",
    }.get(record.outcome, record.outcome.value)
    why = ended.failure or record.reason or record.stop
    return f"{what}: {why}" if why else what


def _ended_properly(trajectory: Trajectory | None) -> bool:
    """Whether the model's last turn is whole, and its calls could be read."""
    if trajectory is None or not trajectory.turns:
        return False
    last = trajectory.turns[-1]
    return last.finish == "stop" and not last.tool_errors


def _patch(trajectory: Trajectory) -> str | None:
    patch = trajectory.extra.get("patch")
    return patch if isinstance(patch, str) else None


__all__ = ["Ended", "critical_error", "original_result", "timing"]
