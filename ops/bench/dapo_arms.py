"""Who takes part in `bench dapo`, and how each of them trains: the supervisor under its rules, and generate-filter-repeat.

Both use the product as a trainer does, on a fleet of their own with equal slots. The trainer itself takes no time: it changes the version
and acks a step when it came. Units of time differ from arm to arm, so that all take about equally long by the wall; figures are in units.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ops.bench.dapo_mix import MEMBERS, Mix, TrainedOn
from ops.bench.dapo_task import TASK, TOKENS_A_UNIT, load_weights
from pipeline.settings import QueueSettings
from trainer_client import JobRequest, Result, StepRequest, connect

TARGET = 8
"""Informative groups of a step."""
WARM_STEPS = 10
"""Steps of the supervisor before the window that is measured: more than any group is in flight for. Batches need none."""
STEPS = 50
FEW_STEPS = 20
"""Of arms that are only asked how long a step takes and what it costs."""
STEP_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One contender in one setting."""

    how: Literal["ours", "batch"]
    half_slow: bool
    slots: int
    steps: int = STEPS
    seed: int = 1
    over: float = 1.5
    """Of ours."""
    staleness: int = 1
    """Of ours: `max_staleness`, and with it the steps that are open ahead."""
    batch: int = TARGET
    """Prompts of a batch."""

    @property
    def name(self) -> str:
        """Also its run and, in short, its place in the metrics."""
        mix = "slow" if self.half_slow else "plain"
        how = f"ours-{self.over:g}-{self.staleness}".replace(".", "_") if self.how == "ours" else f"batch{self.batch}"
        return f"{mix}-{how}-{self.slots}"

    @property
    def mix(self) -> Mix:
        return Mix(self.seed, self.half_slow)

    @property
    def warm_steps(self) -> int:
        return WARM_STEPS if self.how == "ours" else 0

    @property
    def expected_units(self) -> float:
        """About how long it takes, in units, from the same by a virtual clock: the supervisor keeps the slots busy, a batch waits for its
        longest rollout."""
        if self.how == "ours":
            return (self.warm_steps + self.steps) * 1.1 * TARGET * self.mix.oracle / self.slots
        return self.steps * (23.5 if self.batch == TARGET else 14.5) * (7.8 if self.half_slow else 1.0)


@dataclass(kw_only=True)
class Trained(TrainedOn):
    """What came out of one arm's window. `units` is filled in when the workers have ended."""

    arm: Arm
    unit_s: float
    from_s: float = 0.0
    to_s: float = 0.0
    stale: list[bool] = field(default_factory=list)
    """Of accepted groups of ours: older than the staleness it was asked for, and marked so."""
    late_s: list[float] = field(default_factory=list)
    """What a trained member spent in RUN beyond its rollout."""
    hops_s: list[float] = field(default_factory=list)
    """What the first member of a batch to end spent outside RUN."""

    @property
    def to_oracle(self) -> float:
        """Tokens of an accepted group as a share of the computed oracle."""
        return self.tokens_a_group / self.arm.mix.oracle

    @property
    def units_a_step(self) -> float:
        """Time."""
        return (self.to_s - self.from_s) / self.unit_s / self.arm.steps

    @property
    def busy(self) -> float:
        """Share of the time that a slot sampled."""
        return self.units * self.unit_s / (self.to_s - self.from_s) / self.arm.slots

    def take(self, number: int, members: Sequence[Result]) -> None:
        """A group that is trained on."""
        kind = self.arm.mix.kind(number)
        units = [member.record.sampled_tokens / TOKENS_A_UNIT for member in members]
        self.add(kind, (length / kind.factor for length in units))
        self.late_s += (member.record.seconds["run"] - length * self.unit_s for member, length in zip(members, units, strict=True))


async def train(settings: QueueSettings, arm: Arm, unit_s: float, folder: Path) -> Trained:
    """Takes all steps of an arm, as its trainer.

    Args:
        folder: where the task looks for the version of the weights.
    """
    trained = Trained(arm=arm, unit_s=unit_s)
    if arm.how == "ours":
        await _supervised(settings, trained, folder)
    else:
        await _in_batches(settings, trained)
    return trained


def _options(trained: Trained) -> dict[str, object]:
    return {"seed": trained.arm.seed, "half_slow": trained.arm.half_slow, "unit_s": trained.unit_s}


async def _supervised(settings: QueueSettings, trained: Trained, folder: Path) -> None:
    arm = trained.arm
    request = StepRequest(task=TASK, groups=TARGET, n=MEMBERS, over=arm.over, max_staleness=arm.staleness, options=_options(trained))
    last = arm.warm_steps + arm.steps
    async with connect(settings, run=arm.name) as run:
        await run.set_policy_version(0)
        run.feed([{"number": number} for number in range(60 * last)], reserve=64)
        # no end is named: with one, no step is opened beyond it, and the work in flight at the end is less than at the beginning
        async for step in run.steps(request, timeout_s=STEP_TIMEOUT_S):
            if step.index <= arm.warm_steps:
                trained.from_s = time.monotonic()
            else:
                trained.to_s = time.monotonic()
                for group in step.groups:
                    trained.take(int(group.prompt_id.split("-")[1]), group.members)
                    trained.stale.append(group.is_stale)
            load_weights(folder, arm.name, f"{run.incarnation}.{step.index}")
            await run.set_policy_version(step.index)
            await step.ack()
            if step.index == last:
                break


async def _in_batches(settings: QueueSettings, trained: Trained) -> None:
    """What trainers do without a supervisor: run a batch to its end, filter, repeat until the step is full. Surplus is thrown away."""
    arm, options, number = trained.arm, _options(trained), 0
    async with connect(settings, run=arm.name) as run:
        trained.from_s = time.monotonic()
        for _ in range(arm.steps):
            accepted: list[tuple[int, list[Result]]] = []
            while len(accepted) < TARGET:
                batch = range(number, number + arm.batch)
                number += arm.batch
                requests = [
                    JobRequest(
                        task=TASK,
                        id=f"{prompt}-{member}",
                        prompt={"number": prompt, "group": str(prompt), "member": member},
                        options=options,
                    )
                    for prompt in batch
                    for member in range(MEMBERS)
                ]
                jobs = await run.submit(requests, wait_s=STEP_TIMEOUT_S)
                found: dict[str, Result] = {}
                async for result in run.results(jobs, timeout_s=STEP_TIMEOUT_S):
                    if not found:
                        trained.hops_s.append(result.record.seconds["total"] - result.record.seconds["run"])
                    found[result.job] = result
                await run.ack(found.values())
                members = [found[job.id] for job in jobs]
                for at, prompt in enumerate(batch):
                    group = members[at * MEMBERS : (at + 1) * MEMBERS]
                    if len({result.reward for result in group}) > 1:
                        accepted.append((prompt, group))
            for prompt, group in accepted[:TARGET]:
                trained.take(prompt, group)
        trained.to_s = time.monotonic()
