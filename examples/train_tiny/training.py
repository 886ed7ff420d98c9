"""The run: steps through the pipeline, an update from each, new weights for the server, held-out measurements now and then."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from examples.train_tiny import curves
from examples.train_tiny.checkpoints import Checkpoints, Resumed
from examples.train_tiny.dapo import LEARNING_RATE, Learner
from examples.train_tiny.fleet import Fleet
from examples.train_tiny.problems import HELD_OUT, training_rows
from examples.train_tiny.requests import GROUPS, MEMBERS, held_out_request, step_request
from pipeline.engines import Exchange
from pipeline.supervisor.token_fates import TokenFate
from trainer_client import Run, Step, connect
from trainer_client.batches import GRPO, PaddedRows
from trainer_client.batches.step_advantages import advantages_of
from workers.llm.tiny.checkpoint import load_model

ROWS = 20_000
"""Rows that a run is fed with, again and again."""
WAIT_S = 600.0
"""For one step, or one held-out measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person chooses."""

    out: Path
    seed: int = 1
    minutes: float = 15.0
    steps: int = 10_000
    """At most; time usually ends it first."""
    groups: int = GROUPS
    n: int = MEMBERS
    learning_rate: float = LEARNING_RATE
    shuffle_advantages: bool = False
    """Each member gets the advantage of another one: everything is as it was but what there is to learn."""
    measure_every: int = 5
    measure_tasks: int = 60
    """Held-out tasks of a measurement in between."""
    held_out_tasks: int = HELD_OUT
    """Of the first and of the last one: all that there are, unless somebody only wants to see it run."""
    goal: float = 0.9
    """A measurement in between that reaches it ends the run, if all held-out tasks say so too; 0 = time alone does."""


@dataclass(slots=True)
class Clock:
    """Training time, over all the processes that a run had."""

    before_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before_s + time.monotonic() - self.began_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended."""

    before: float
    """Held-out mean that training began with, over all held-out tasks."""
    after: float
    steps: int
    minutes: float


class Training:
    """One run."""

    def __init__(self, options: Options, fleet: Fleet, supervised: Path) -> None:
        self._options = options
        self._fleet = fleet
        self._supervised = supervised
        self._checkpoints = Checkpoints(options.out / "checkpoints")
        found = self._checkpoints.resume(learning_rate=options.learning_rate)
        self._resumed = found[1] if found else None
        self._learner = found[0] if found else Learner(load_model(supervised), learning_rate=options.learning_rate)
        self._tokens = self._resumed.sampled_tokens if self._resumed else 0
        self._clock = Clock(0.0)

    async def run(self) -> Outcome:
        """Trains until the time is over, the goal is reached, or the steps are taken."""
        options = self._options
        state = self._resumed.rollouts if self._resumed else None
        async with connect(self._fleet.settings, run=f"tiny-{options.seed}", resume=state) as run:
            await run.servers.attach(self._fleet.model_url, control="trainer")
            first = run.next_step or 1
            await self._push(run, first - 1)
            if self._resumed is None:
                await self._note_measured(run, 0, minutes=0.0)
            run.feed(training_rows(options.seed, ROWS), epochs=1000, shuffle_seed=options.seed)
            request = step_request(self._supervised, options.seed, groups=options.groups, n=options.n)
            self._clock = Clock(self._resumed.seconds if self._resumed else 0.0)
            index, after = first - 1, None
            asked_s = time.monotonic()
            async for step in run.steps(request, timeout_s=WAIT_S):
                index = step.index
                after = await self._take(run, step, wait_s=time.monotonic() - asked_s)
                if after is not None:
                    break
                asked_s = time.monotonic()
            if after is None:
                after = await self._note_measured(run, index, minutes=self._minutes)
        before = next((point.held_out for point in curves.read(options.out) if point.step == 0), float("nan"))
        return Outcome(before, after, index, self._minutes)

    @property
    def _minutes(self) -> float:
        return self._clock.seconds / 60

    async def _take(self, run: Run, step: Step, *, wait_s: float) -> float | None:
        """Trains on a step; the held-out mean when the run is over with it, else None."""
        options, numbers = self._options, step.metrics
        began_s = time.monotonic()
        batch = await step.batch(rows=len(step.groups) * options.n, advantage=await self._advantages(step))
        learned: Mapping[str, float] = {}
        for microbatch in batch.microbatches():
            assert isinstance(microbatch, PaddedRows), "rows were asked for"
            learned = await asyncio.to_thread(self._learner.learn, microbatch, seed=step.index)
        pushed_s = time.monotonic()
        await self._push(run, step.index)
        done_s = time.monotonic()
        self._tokens += int(sum(numbers[f"tokens_{fate}"] for fate in TokenFate if fate is not TokenFate.OUTSIDE))
        ages = [group.staleness for group in step.groups if group.staleness is not None]
        await step.ack()
        self._checkpoints.finish(self._learner, step.index, Resumed(run.state_dict(), self._clock.seconds, self._tokens))
        held_out, tasks, is_over = await self._measure_when_due(run, step.index)
        self._note(
            curves.Point(
                step=step.index,
                minutes=self._minutes,
                held_out=held_out,
                held_out_tasks=tasks,
                reward=numbers["reward_mean_all"],
                filtered_share=numbers["groups_filtered_share"],
                tokens=self._tokens,
                tokens_kept=int(numbers["tokens_kept"]),
                staleness=sum(ages) / len(ages) if ages else curves.NAN,
                wait_s=wait_s,
                learn_s=pushed_s - began_s,
                push_s=done_s - pushed_s,
                turns=numbers["turns_mean"],
                entropy=learned.get("entropy", curves.NAN),
                behaviour_ratio=learned.get("behaviour_ratio", curves.NAN),
                clipped=learned.get("clipped", curves.NAN),
            )
        )
        return held_out if is_over else None

    async def _advantages(self, step: Step) -> GRPO | dict[str, float]:
        """DAPO's, which are GRPO's of groups that passed the filter; or the same ones, dealt out anew over all members of the step."""
        if not self._options.shuffle_advantages:
            return GRPO()
        manifest = await step.manifest()
        values = list(advantages_of(manifest, GRPO()))
        random.Random(f"shuffled/{self._options.seed}/{step.index}").shuffle(values)
        return {group.job(member): value for (group, member), value in zip(manifest.entries, values, strict=True)}

    # ---- weights

    async def _push(self, run: Run, number: int) -> None:
        """Brings the weights to the servers, as version `number`."""
        folder = await asyncio.to_thread(self._checkpoints.save_weights, self._learner, number, self._supervised)
        async with run.weight_update(number, mode="keep") as servers:
            for server in servers:
                async with Exchange(server.url) as http:
                    await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    # ---- measurements: in between at index 10 k of the run's validations, of all tasks at 10 k + 1

    async def _measure_when_due(self, run: Run, index: int) -> tuple[float, int, bool]:
        """Held-out mean (NaN = not now), over how many tasks, and whether the run is over."""
        options = self._options
        if self._minutes >= options.minutes or index >= options.steps:
            return await self._measure(run, 10 * index + 1, options.held_out_tasks), options.held_out_tasks, True
        if index % options.measure_every:
            return curves.NAN, 0, False
        found = await self._measure(run, 10 * index, options.measure_tasks)
        if not options.goal or found < options.goal:
            return found, options.measure_tasks, False
        found = await self._measure(run, 10 * index + 1, options.held_out_tasks)
        return found, options.held_out_tasks, found >= options.goal

    async def _note_measured(self, run: Run, step: int, *, minutes: float) -> float:
        """A measurement where no step was trained on: before the first one, and when prompts have ended."""
        tasks = self._options.held_out_tasks
        found = await self._measure(run, 10 * step + 1, tasks)
        self._note(curves.Point(step=step, minutes=minutes, held_out=found, held_out_tasks=tasks, tokens=self._tokens))
        return found

    async def _measure(self, run: Run, index: int, tasks: int) -> float:
        """Mean reward over held-out tasks; what broke counts nowhere, and how many that were is said."""
        validation = await run.validate(held_out_request(self._supervised, self._options.seed, tasks=tasks), index=index, timeout_s=WAIT_S)
        if validation.n_valid < tasks:
            print(f"held out: {validation.n_valid} of {tasks} are valid: {validation.why_invalid}", flush=True)
        mean = float(validation.mean_at_k)
        await validation.ack()
        return mean

    def _note(self, point: curves.Point) -> None:
        curves.append(self._options.out, point)
        print(_line(point), flush=True)


def _line(point: curves.Point) -> str:
    held_out = f"held out {point.held_out:.3f} of {point.held_out_tasks} · " if point.held_out_tasks else ""
    if not point.tokens_kept:
        return f"step {point.step:3d} · {point.minutes:5.1f} min · {held_out}".removesuffix(" · ")
    return (
        f"step {point.step:3d} · {point.minutes:5.1f} min · {held_out}reward {point.reward:.2f} · turns {point.turns:.2f} · "
        f"filtered {point.filtered_share:.0%} · {point.tokens / 1000:.1f}k tokens · stale {point.staleness:.1f} · "
        f"waited {point.wait_s:.1f} s, learned {point.learn_s:.1f} s, pushed {point.push_s:.1f} s"
    )
