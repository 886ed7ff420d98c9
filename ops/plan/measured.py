"""Latencies and sizes of a run that was, in place of guesses: what Redis has of its results, or an export of it.

Times, outcomes and the share that was filtered come from the facts of `rollstream run report`. What their records do not say (how much of
RUN is the model, how large a trajectory is) is read from some trajectories that are still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ops.report import gather
from ops.report.facts import JobFacts, StepFacts
from pipeline import codec
from pipeline.errors import DamagedBody, NewerMessage, RollstreamError
from pipeline.keys import Keys
from pipeline.messages import JobResult, Stage, Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from trainer_client.records import Unreadable, read_record

DONE = ("ok", "model_failure")
"""Outcomes of jobs that went all the way."""
PAGE = 500
MOST_TRAJECTORIES = 64
"""So many tell a mean well enough, and are read in a second."""


class NothingMeasured(RollstreamError):
    """No job of the run has come to an end that Redis, or the export, still knows."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"run {run!r} has no ended job that is not acknowledged: ask while it runs, or give an export of it (rollstream run export)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run says for a plan."""

    values: Mapping[str, float]
    """By the names of `PlanSettings`; what could not be told is not there."""
    jobs: int
    """That tell of times."""
    trajectories: int
    """That were read."""
    trajectory_bytes: float | None
    """Mean of those; None = none is there any more."""


async def measured_in_run(client: AsyncClient, settings: QueueSettings, keys: Keys, run: str, export: Path | None = None) -> Measured:
    """Reads a run.

    Args:
        export: folder of an export of this run.

    Raises:
        UnknownRun, NothingMeasured
        ExportError: the folder holds no export of this run.
        BrokerError
    """
    facts = await gather(client, settings, keys, run, export)
    done = [job for job in facts.jobs if job.outcome in DONE]
    if not done:
        raise NothingMeasured(run)
    sizes, trajectories = await _read_trajectories(client, keys, run)
    return Measured(
        values={
            **_shares(facts.jobs, facts.jobs_counted, facts.steps),
            **_times(done, trajectories),
            **_tokens(trajectories),
        },
        jobs=len(done),
        trajectories=len(trajectories),
        trajectory_bytes=fmean(sizes) if sizes else None,
    )


def _times(done: list[JobFacts], trajectories: list[Trajectory]) -> dict[str, float]:
    """Means a stage. RUN is split into the model's part and the rest as the trajectories say."""
    means = {}
    for stage in Stage:
        if seconds := [job.seconds[stage.value] for job in done if stage.value in job.seconds]:
            means[stage] = fmean(seconds)
    found = {f"{stage.value}_s": mean for stage, mean in means.items() if stage is not Stage.RUN}
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if turns and Stage.RUN in means:
        a_turn_s = means[Stage.RUN] / (len(turns) / len(trajectories))
        found["model_s"] = min(a_turn_s, fmean(turn.model_s for turn in turns))
        found["tool_s"] = a_turn_s - found["model_s"]
    return found


def _tokens(trajectories: list[Trajectory]) -> dict[str, float]:
    acted = [trajectory for trajectory in trajectories if trajectory.turns]
    if not acted:
        return {}
    turns = sum(len(trajectory.turns) for trajectory in acted)
    sampled = sum(int(segment.sampled_mask.sum()) for trajectory in acted for segment in trajectory.segments)
    first = sum(trajectory.turns[0].start for trajectory in acted)
    tokens = sum(len(segment.token_ids) for trajectory in acted for segment in trajectory.segments)
    return {
        "turns": turns / len(acted),
        "prompt_tokens": max(1.0, first / len(acted)),
        "sampled_tokens": max(1.0, sampled / turns),
        "observation_tokens": max(0.0, (tokens - first - sampled) / turns),
    }


def _shares(jobs: tuple[JobFacts, ...], counted: Mapping[str, int], steps: tuple[StepFacts, ...]) -> dict[str, float]:
    """What was filtered of judged groups, and what came to nothing of jobs: as the run counted them, where it did."""
    outcomes = dict(counted)
    if not outcomes:
        for job in jobs:
            outcomes[job.outcome] = outcomes.get(job.outcome, 0) + 1
    ended = sum(outcomes.values())
    found = {"wasted": min(0.99, 1 - sum(outcomes.get(name, 0) for name in DONE) / ended)} if ended else {}
    filtered = sum(step.counts.get("filtered", 0) for step in steps)
    judged = filtered + sum(step.accepted for step in steps)
    return {**found, "filtered": min(0.99, filtered / judged)} if judged else found


async def _read_trajectories(client: AsyncClient, keys: Keys, run: str) -> tuple[list[int], list[Trajectory]]:
    """Bytes and content of the newest ones that are there."""
    names: list[str] = []
    end = "+"
    while len(names) < MOST_TRAJECTORIES:
        page = await ask(client, "XREVRANGE", keys.results(run), end, "-", "COUNT", PAGE)
        for entry, fields in page:
            try:
                record = read_record(entry.decode(), [word for pair in fields.items() for word in pair])
            except Unreadable:
                continue
            if isinstance(record, JobResult) and record.outcome.value in DONE and record.run_attempt:
                names.append(keys.body(record.job, record.run_attempt, Stage.RUN.value))
        if len(page) < PAGE:
            break
        end = "(" + page[-1][0].decode()
    sizes, found = [], []
    for name in names[:MOST_TRAJECTORIES]:
        body = await ask(client, "GET", name)
        if body is None:  # filtered, or acknowledged meanwhile
            continue
        try:
            found.append(codec.decode(Trajectory, bytes(body)))
        except (DamagedBody, NewerMessage):
            continue
        sizes.append(len(body))
    return sizes, found


__all__ = ["Measured", "NothingMeasured", "measured_in_run"]
