"""One typed function for each script of rewards from outside (ADR 10): jobs begin to await one, it is reported, a group's hook reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from pipeline.errors import InvalidRequest
from pipeline.messages import Settlement, Stage
from pipeline.request_errors import shown
from pipeline.scripts.calls import MAX_BATCH, Held, attached_args, settlement_args
from pipeline.scripts.replies import check_refusal, text
from pipeline.scripts.runner import Arg, ScriptRunner

SCORE = "score"
"""The reward itself, as a component."""
MAX_COMPONENTS = 64
MAX_NAME = 64


class ReportAnswer(StrEnum):
    """What became of a report. All but the first change nothing."""

    ACCEPTED = "accepted"
    """It stands."""
    DUPLICATE = "duplicate"
    """Another report stands."""
    LATE = "late"
    """The job or group ended without it: cancelled, past its deadline, or rewarded by its task."""
    EARLY = "early"
    """It does not wait for one: the job is at work, or has its reward from its task; the group is not complete."""
    SUPERSEDED = "superseded"
    """The job ran again since; another trajectory awaits its reward."""
    UNKNOWN = "unknown"
    """No such job or group in this run, or it was acked."""


@dataclass(frozen=True, slots=True)
class AwaitReward:
    """An attempt whose job awaits its reward or its group's hook."""

    held: Held
    active_ms: int
    body: bytes
    kind: str
    settlement: Settlement
    reward_deadline_s: float | None
    """None = it has its reward."""
    hold_s: float
    attached: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What is reported of one job."""

    score: float | None
    """None = the one it has stands."""
    components: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.score is not None:
            _number("score", self.score)
        if len(self.components) > MAX_COMPONENTS:
            raise InvalidRequest(f"expected at most {MAX_COMPONENTS}, got {len(self.components)}", field="components")
        for name, value in self.components.items():
            if not 0 < len(name) <= MAX_NAME or not name.isprintable():
                raise InvalidRequest(f"expected names of 1 to {MAX_NAME} printable characters, got {shown(name)}", field="components")
            if name == SCORE:
                raise InvalidRequest("expected other names than 'score', which is the reward itself", field="components.score")
            _number(f"components.{name}", value)

    @property
    def score_text(self) -> str:
        return "" if self.score is None else repr(float(self.score))

    @property
    def components_text(self) -> bytes:
        """JSON of all parts, the score among them; empty when there are none."""
        parts = {} if self.score is None else {SCORE: float(self.score)}
        parts |= {name: float(value) for name, value in self.components.items()}
        return orjson.dumps(parts) if parts else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A reward and whose it is."""

    job: str
    reward: Reward
    run_attempt: int = 0
    """Attempt whose trajectory was judged; 0 = whichever awaits."""


class RewardScripts:
    """These scripts on one shard."""

    def __init__(self, run_script: ScriptRunner) -> None:
        self.run_script = run_script

    async def await_reward(self, stage: Stage, jobs: Sequence[AwaitReward], *, ttl_ms: int) -> list[str]:
        """Lets jobs await; per job `ok`, `again`, `fenced` or `cx:<reason>`."""
        args: list[Arg] = [stage.value, ttl_ms]
        for job in jobs:
            held = job.held
            args += [held.stream, held.entry, held.job, held.attempt, job.active_ms, job.body, job.kind]
            args += settlement_args(job.settlement)
            args += ["" if job.reward_deadline_s is None else int(job.reward_deadline_s * 1000), int(job.hold_s * 1000)]
            args += attached_args(job.attached)
        reply = await self.run_script("await_reward", *args)
        return [text(word) for word in reply]

    async def report_rewards(self, run: str, incarnation: int, reports: Sequence[Report]) -> list[ReportAnswer]:
        """Reports rewards; what became of each.

        Args:
            incarnation: of the trainer; 0 = whoever reports is not the run's trainer.

        Raises:
            InvalidRequest: a score is outside the bounds of its step. Those before and after it in `reports` were taken.
            StaleIncarnation, RunClosed
        """
        answers: list[ReportAnswer] = []
        refused: InvalidRequest | None = None
        for at in range(0, len(reports), MAX_BATCH):
            args: list[Arg] = [run, incarnation]
            for report in (batch := reports[at : at + MAX_BATCH]):
                args += [report.job, report.run_attempt or "", report.reward.score_text, report.reward.components_text]
            reply = await self.run_script("report_reward", *args)
            check_refusal(reply, run, incarnation)
            for report, word in zip(batch, map(text, reply), strict=True):
                if word.startswith("bounds:"):
                    refused = refused or _out_of_bounds(report.job, word.removeprefix("bounds:"), report.reward.score_text)
                else:
                    answers.append(ReportAnswer(word))
        if refused is not None:
            raise refused
        return answers

    async def report_group(self, run: str, incarnation: int, group: str, members: Mapping[int, Reward]) -> ReportAnswer:
        """Reports what a group's hook says of its members; the group closes.

        Raises:
            InvalidRequest: a score is outside the bounds of the step; nothing was changed.
            StaleIncarnation, RunClosed
        """
        args: list[Arg] = [run, incarnation, group]
        for number, reward in sorted(members.items()):
            args += [number, reward.score_text, reward.components_text]
        reply = await self.run_script("report_group", *args)
        check_refusal(reply, run, incarnation)
        word = text(reply[0])
        if word.startswith("bounds:"):
            member, _, bounds = word.removeprefix("bounds:").partition(" ")
            raise _out_of_bounds(f"{group}.{member}", bounds, members[int(member)].score_text)
        return ReportAnswer(word)


def _number(name: str, value: object) -> None:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]  # one of numpy or torch, too
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"expected a finite number, got {shown(value)}: report nothing for what could not be judged", field=name)


def _out_of_bounds(job: str, bounds: str, score: str) -> InvalidRequest:
    return InvalidRequest(f"expected {bounds}, the bounds that the step of {job} declares, got {score}", field="score")


__all__ = ["AwaitReward", "Report", "ReportAnswer", "Reward", "RewardScripts"]
