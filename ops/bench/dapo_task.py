"""The task of `bench dapo`: RUN sleeps for as long as its rollout is, and samples a token for each piece of it.

What a prompt holds: `number`, its place in the mix; for a single job also `group` and `member`. What the options hold: `seed`,
`half_slow`, `unit_s`. What a model server would say, the version of its weights, stands in a file of the run. Each RUN attempt leaves a
line in the run's account when it ends, however it ends: `<began> <ended> <units>`, by the monotonic clock that all processes of a machine
share. So every token that was sampled is counted, also those of cancelled rollouts.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ops.bench.dapo_mix import Dealer, Mix
from pipeline.messages import Grade, JobSpec, Sampling, Segment, StopReason, Trajectory, Turn, VersionSpan
from workers.handlers.base import EvalContext, RunContext, TaskHandler

TASK = "dapo"
TOKENS_A_UNIT = 32
"""Lengths are rounded to a thirtysecond of a unit; a slow rollout is a few hundred tokens."""
PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose rollout it is."""

    mix: Mix
    unit_s: float
    group: str
    number: int
    member: int

    @classmethod
    def of(cls, spec: JobSpec) -> Asked:
        data, options = spec.prompt.data, spec.template.options
        return cls(
            Mix(int(str(options["seed"])), bool(options["half_slow"])),
            float(str(options["unit_s"])),
            spec.group or str(data["group"]),
            int(str(data["number"])),
            spec.member if spec.group else int(str(data["member"])),
        )


class SleepingTask(TaskHandler):
    """Rollouts that cost nothing but time.

    Args:
        folder: for the account and the version of each run.
    """

    name = TASK

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dealers: dict[str, Dealer] = {}

    async def run(self, context: RunContext) -> Trajectory:
        asked, run = Asked.of(context.spec), context.spec.run
        dealer = self._dealers.setdefault(run, Dealer(asked.mix))
        units = dealer.length(asked.group, asked.number, asked.member)
        context.gate()
        version = sampling_version(self._folder, run)
        began_s = time.monotonic()
        done = 0.0
        try:
            await asyncio.sleep(units * asked.unit_s)
            done = units
        finally:
            ended_s = time.monotonic()
            done = done or min(units, (ended_s - began_s) / asked.unit_s)
            # one short append is one write: lines of several processes do not mix
            with account_file(self._folder, run).open("a", encoding="ascii") as account:
                account.write(f"{began_s:.4f} {ended_s:.4f} {done:.4f}\n")
        return trajectory_of(max(1, round(units * TOKENS_A_UNIT)), version)

    async def evaluate(self, context: EvalContext) -> Grade:
        asked = Asked.of(context.spec)
        return Grade(reward=asked.mix.kind(asked.number).reward(asked.member), grader=TASK)


def account_file(folder: Path, run: str) -> Path:
    """Where a run's sampling is written down."""
    return folder / f"{run}.account"


def sampling_version(folder: Path, run: str) -> str:
    """Label of the weights that sample for a run; the first one's until somebody says another."""
    file = folder / f"{run}.version"
    return file.read_text(encoding="ascii") if file.exists() else "1.0"


def load_weights(folder: Path, run: str, version: str) -> None:
    """From now on these weights sample."""
    draft = folder / f"{run}.version.new"
    draft.write_text(version, encoding="ascii")
    draft.replace(folder / f"{run}.version")


def trajectory_of(sampled: int, version: str) -> Trajectory:
    """One turn of so many tokens."""
    total = PROMPT_TOKENS + sampled
    mask = np.zeros(total, np.uint8)
    mask[PROMPT_TOKENS:] = 1
    logprobs = np.full(total, np.nan, np.float32)
    logprobs[PROMPT_TOKENS:] = -1.0
    segment = Segment(
        token_ids=np.arange(total, dtype=np.uint32),
        sampled_mask=mask,
        loss_mask=mask,
        logprobs=logprobs,
        versions=(VersionSpan(version=version, start=PROMPT_TOKENS, end=total),),
    )
    turn = Turn(
        index=0,
        segment=0,
        start=PROMPT_TOKENS,
        end=total,
        finish="stop",
        sampling=Sampling(),
        seed=0,
        server="",
        request_id="",
        cached_tokens=-1,
        logprobs_mode="raw",
        template="",
        tokenizer="",
        model_s=0.0,
    )
    return Trajectory(segments=(segment,), turns=(turn,), stop=StopReason.FINISHED)


def units_between(account: Path, from_s: float, to_s: float) -> float:
    """Units sampled in a stretch of time. A rollout samples evenly while it goes on."""
    total = 0.0
    for line in account.read_text(encoding="ascii").splitlines():
        began_s, ended_s, units = map(float, line.split())
        within_s = min(ended_s, to_s) - max(began_s, from_s)
        if within_s > 0 and ended_s > began_s:
            total += units * within_s / (ended_s - began_s)
    return total
