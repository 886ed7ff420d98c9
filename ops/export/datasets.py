"""The three data sets of an export: columns, and the row of a record. Columns are only added, and never mean something else.

A row is a map of plain values and numpy arrays; what a record does not say is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ops.export.columns import Column
from ops.export.records import ExportedRecord
from pipeline.messages import JobResult, Segment, Turn
from trainer_client.records import STAGES, GroupRecord, StepRecord

Row = dict[str, Any]  # Any: columns have types of their own, which the schema holds them to


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One kind of records, as a table."""

    name: str
    """Also its folder."""
    kind: type[JobResult | GroupRecord | StepRecord]
    columns: tuple[Column, ...]
    row: Callable[[ExportedRecord], Row]


_SEGMENT = (
    Column("token_ids", "list of u32", "[T] the whole interleaved sequence"),
    Column("sampled_mask", "list of u8", "[T] 1 exactly on the tokens that were sampled in this segment"),
    Column("loss_mask", "list of u8", "[T] at most `sampled_mask`"),
    Column("logprobs", "list of f32", "[T] nats; NaN (JSON: null) where not sampled"),
    Column(
        "versions",
        "list of record",
        "policy version of each stretch of sampled tokens",
        (Column("version", "text", "label"), Column("start", "whole", "first token"), Column("end", "whole", "one past the last")),
    ),
    Column("began", "text", "why it began"),
    Column("parent", "whole", "segment it forked from; -1 = none"),
    Column("fork", "whole", "tokens it shares with its parent"),
    Column(
        "blobs",
        "list of record",
        "arrays that were kept beside it; they stay in the blob store and go with the ack",
        (
            Column("name", "text", "what it is"),
            Column("uri", "text", "where it lies"),
            Column("digest", "text", "SHA-256"),
            Column("dtype", "text", "of numpy"),
            Column("shape", "list of whole", "of the array"),
        ),
    ),
)
_CALL = (
    Column("segment", "whole", "segment that it sampled in"),
    Column("start", "whole", "first sampled token"),
    Column("end", "whole", "one past the last"),
    Column("finish", "text", "the server's word"),
    Column("temperature", "number", ""),
    Column("top_p", "number", ""),
    Column("top_k", "whole", "0 = all"),
    Column("min_p", "number", ""),
    Column("seed", "text", "decimal"),
    Column("server", "text", "address"),
    Column("cached_tokens", "whole", "prompt tokens in its prefix cache; -1 = it does not say"),
    Column("logprobs_mode", "text", "raw or processed"),
    Column("model_s", "number", "seconds in the model"),
    Column("tools_s", "number", "seconds in tools"),
    Column("tool_calls", "whole", ""),
    Column("tool_errors", "whole", ""),
)
_SECONDS = tuple(Column(stage, "number", f"in {stage.upper()}") for stage in STAGES)

TRAJECTORIES = (
    Column("entry", "text", "id of the record in the results stream; unique in the run, in order"),
    Column("run", "text", ""),
    Column("job", "text", ""),
    Column("group", "text", "empty for a single job"),
    Column("prompt_id", "text", "stable id of its prompt; empty when the prompt was gone"),
    Column("member", "whole", "number in the group"),
    Column("task", "text", ""),
    Column("outcome", "text", "`ok`, `model_failure`, `infra_failure`, `cancelled`, `expired`"),
    Column("reason", "text", "stop reason, cancel reason or failure"),
    Column("reward", "number", "null = none, which is not 0"),
    Column("components", "map of number", "named parts of the reward"),
    Column("stop", "text", "why the turns ended"),
    Column("attempt", "whole", "that ended it"),
    Column("run_attempt", "whole", "whose trajectory is kept; 0 = none"),
    Column("eval_attempt", "whole", "whose grade is kept; 0 = none"),
    Column("incarnation", "whole", "of the trainer that asked for it"),
    Column("sampled_tokens", "whole", ""),
    Column("total_tokens", "whole", ""),
    Column("spent_tokens", "whole", "sampled over all attempts"),
    Column("turns", "whole", "model calls"),
    Column("first_version", "text", "policy version of the first sampled token"),
    Column("last_version", "text", "of the last"),
    Column("ended_at", "time", ""),
    Column(
        "seconds",
        "record",
        "time a stage, of the attempts that were kept",
        (*_SECONDS, Column("total", "number", "from accepted to ended")),
    ),
    Column("waits", "record", "time before each stage that it came to", _SECONDS),
    Column("has_trajectory", "yes/no", "false: none was kept, or it was acked or filtered before the export"),
    Column("segments", "list of record", "of the trajectory", _SEGMENT),
    Column("calls", "list of record", "its model calls", _CALL),
    Column("messages", "list of record", "as text, for people", (Column("role", "text", ""), Column("content", "text", ""))),
    Column("answer", "text", "what was graded"),
    Column("extra", "json", "the handler's own"),
    Column("prompt", "json", "data of the prompt"),
    Column("grader", "text", "name and version"),
    Column("grade_details", "json", "verdict, log excerpts"),
    Column("unreadable", "list of text", "bodies that could not be read, and why"),
)

GROUPS = (
    Column("entry", "text", "as of trajectories"),
    Column("run", "text", ""),
    Column("group", "text", ""),
    Column("prompt_id", "text", ""),
    Column("draw", "whole", "which draw of the prompt"),
    Column("verdict", "text", "what became of it"),
    Column("why", "text", ""),
    Column("step", "whole", "it is accounted to; null = none was open"),
    Column("want", "whole", "members it had"),
    Column("valid", "whole", "members in its statistics"),
    Column("values", "list of number", "what the filter looked at, a member; null where not valid"),
    Column("mean", "number", "of the valid"),
    Column("spread", "number", "largest less smallest"),
    Column("sampled_tokens", "whole", ""),
    Column("total_tokens", "whole", ""),
    Column("tokens", "map of whole", "sampled tokens by what became of them"),
    Column("first_version", "text", ""),
    Column("last_version", "text", ""),
    Column("incarnation", "whole", ""),
    Column("age_s", "number", "from launch to verdict"),
    Column("age_versions", "whole", "null = not known"),
    Column("closed_at", "time", ""),
)

STEPS = (
    Column("entry", "text", "as of trajectories"),
    Column("run", "text", ""),
    Column("step", "whole", "its index"),
    Column("groups", "list of text", "to train, in order"),
    Column("target", "whole", "groups it asked for"),
    Column("members", "whole", "a group"),
    Column("is_short", "yes/no", "fewer groups than the target"),
    Column("cancelled_for", "text", "empty = it was not"),
    Column("verdicts", "map of whole", "groups that did not join, by verdict"),
    Column("redundant", "whole", "groups that were given up when it was reached"),
    Column("tokens", "map of whole", "sampled tokens by what became of them"),
    Column("took_s", "number", "from opened to reached"),
    Column("cancel_settled_s", "number", "longest from the target to the end of the last cancelled member; null = none"),
    Column("watched_s", "number", "in which it was the oldest open step"),
    Column("short_s", "map of number", "of it, with too little at work, by reason"),
    Column("monitors", "map of number", "of the length monitor"),
    Column("incarnation", "whole", ""),
    Column("reached_at", "time", ""),
)


def _job_row(found: ExportedRecord) -> Row:
    result, trajectory, grade, prompt = found.record, found.trajectory, found.grade, found.prompt
    assert isinstance(result, JobResult)
    return {
        "entry": result.entry,
        "run": result.run,
        "job": result.job,
        "group": result.group,
        "prompt_id": prompt.id if prompt else "",
        "member": result.member,
        "task": result.task,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "reward": result.reward,
        "components": dict(result.components),
        "stop": result.stop,
        "attempt": result.attempt,
        "run_attempt": result.run_attempt,
        "eval_attempt": result.eval_attempt,
        "incarnation": found.incarnation,
        "sampled_tokens": result.sampled_tokens,
        "total_tokens": result.total_tokens,
        "spent_tokens": result.spent_tokens,
        "turns": result.turns,
        "first_version": result.first_version,
        "last_version": result.last_version,
        "ended_at": _time_of(result.entry),
        "seconds": {name: result.seconds.get(name) for name in (*STAGES, "total")},
        "waits": {name: result.waits.get(name) for name in STAGES},
        "has_trajectory": trajectory is not None,
        "segments": [_segment(segment) for segment in trajectory.segments] if trajectory else [],
        "calls": [_call(turn) for turn in trajectory.turns] if trajectory else [],
        "messages": [{"role": line.role, "content": line.content} for line in trajectory.messages] if trajectory else [],
        "answer": trajectory.answer if trajectory else "",
        "extra": trajectory.extra if trajectory else None,
        "prompt": prompt.data if prompt else None,
        "grader": grade.grader if grade else "",
        "grade_details": grade.details if grade else None,
        "unreadable": list(found.unreadable),
    }


def _segment(segment: Segment) -> Row:
    return {
        "token_ids": np.asarray(segment.token_ids, np.uint32),
        "sampled_mask": np.asarray(segment.sampled_mask, np.uint8),
        "loss_mask": np.asarray(segment.loss_mask, np.uint8),
        "logprobs": np.asarray(segment.logprobs, np.float32),
        "versions": [{"version": span.version, "start": span.start, "end": span.end} for span in segment.versions],
        "began": segment.began,
        "parent": segment.parent,
        "fork": segment.fork,
        "blobs": [
            {"name": blob.name, "uri": blob.uri, "digest": blob.digest, "dtype": blob.dtype, "shape": list(blob.shape)}
            for blob in segment.blobs
        ],
    }


def _call(turn: Turn) -> Row:
    sampling = turn.sampling
    return {
        "segment": turn.segment,
        "start": turn.start,
        "end": turn.end,
        "finish": turn.finish,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": str(turn.seed),
        "server": turn.server,
        "cached_tokens": turn.cached_tokens,
        "logprobs_mode": turn.logprobs_mode,
        "model_s": turn.model_s,
        "tools_s": turn.tools_s,
        "tool_calls": turn.tool_calls,
        "tool_errors": turn.tool_errors,
    }


def _group_row(found: ExportedRecord) -> Row:
    group = found.record
    assert isinstance(group, GroupRecord)
    return {
        "entry": group.entry,
        "run": group.run,
        "group": group.group,
        "prompt_id": group.prompt,
        "draw": group.draw,
        "verdict": group.verdict.value,
        "why": group.why,
        "step": group.step,
        "want": group.want,
        "valid": group.valid,
        "values": list(group.values),
        "mean": group.mean,
        "spread": group.spread,
        "sampled_tokens": group.sampled_tokens,
        "total_tokens": group.total_tokens,
        "tokens": dict(group.tokens),
        "first_version": group.first_version,
        "last_version": group.last_version,
        "incarnation": group.incarnation,
        "age_s": group.age_s,
        "age_versions": group.age_versions,
        "closed_at": _time_of(group.entry),
    }


VERDICTS = ("filtered", "dropped", "dead", "cancelled", "surplus", "stale")
FATES = ("kept", "filtered", "cancelled", "failed", "surplus", "stale", "late")


def _step_row(found: ExportedRecord) -> Row:
    step = found.record
    assert isinstance(step, StepRecord)
    return {
        "entry": step.entry,
        "run": step.run,
        "step": step.index,
        "groups": list(step.groups),
        "target": step.target,
        "members": step.n,
        "is_short": step.is_short,
        "cancelled_for": step.cancelled_for,
        "verdicts": {name: int(getattr(step, name)) for name in VERDICTS},
        "redundant": step.redundant,
        "tokens": {name: int(getattr(step, f"tokens_{name}")) for name in FATES},
        "took_s": step.took_s,
        "cancel_settled_s": step.cancel_settled_s,
        "watched_s": step.starvation.watched_s,
        "short_s": dict(step.starvation.short_s),
        "monitors": dict(step.monitors),
        "incarnation": step.incarnation,
        "reached_at": _time_of(step.entry),
    }


def _time_of(entry: str) -> datetime:
    """When an entry was written, by the clock of Redis."""
    return datetime.fromtimestamp(int(entry.partition("-")[0]) / 1000, UTC)


DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(name="trajectories", kind=JobResult, columns=TRAJECTORIES, row=_job_row),
        Dataset(name="groups", kind=GroupRecord, columns=GROUPS, row=_group_row),
        Dataset(name="steps", kind=StepRecord, columns=STEPS, row=_step_row),
    )
}


__all__ = ["DATASETS", "Dataset", "Row"]
