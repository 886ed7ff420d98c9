"""What a person sees of the demo: what will run, a line a stage while it runs, and the summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ops.demo.models import DemoModel
from ops.demo.places import DemoState
from ops.demo.trainer import DemoOutcome
from ops.job.view import render_trajectory
from ops.look import Look, RunLook
from ops.run_view import bar, shares
from ops.visible_text import visible_line
from pipeline.messages import Grade, Prompt, Stage
from pipeline.supervisor.actions import Verdict
from trainer_client.records import GroupRecord, StepRecord
from workers.stages.sandbox_record import SANDBOX

BAR = 28
GROUPS_SHOWN = 24
MOST_DETAIL_CHARS = 120
RIGHT, WRONG, UNCOUNTED = "●", "○", "·"


def introduce(console: Console, model: DemoModel, *, run: str, groups: int, n: int, slots: int) -> None:
    """What will happen, before it does."""
    console.print("[bold]Rollstream demo[/bold]: one training step of rollouts, on this machine.\n")
    console.print(
        "It starts a Redis-compatible server of its own (Valkey, from a wheel), one worker process for each stage "
        f"(INIT, RUN with {slots} slots, EVAL), a DAPO supervisor, and an inference server. "
        f"Then it asks for {model.asks.format(groups=groups, n=n)}."
    )
    console.print(model.said)
    console.print(f"run [bold]{run}[/bold] · {model.takes}\n")


class LiveView:
    """A line a stage and one for the step; on something that is no terminal, a line now and then."""

    def __init__(self, console: Console, run: str) -> None:
        self._console = console
        self._run = run
        self._started_s = time.monotonic()
        self._said_s = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Look) -> None:
        """One look."""
        took_s = time.monotonic() - self._started_s
        mine = next((run for run in found.runs if run.name == self._run), None)
        if self._live is not None:
            self._live.update(Group(*_stage_lines(found), _step_line(mine, took_s)), refresh=True)
        elif took_s - self._said_s >= 3.0 or not self._said_s:
            self._said_s = took_s
            stages = ", ".join(
                f"{stage.value.upper()} {seen.running} running {seen.waiting} waiting" for stage, seen in found.stages.items()
            )
            self._console.print(Text(f"{stages}; {_step_line(mine, took_s).plain}"))


def _stage_lines(found: Look) -> list[Text]:
    lines = []
    for stage in Stage:
        seen = found.stages[stage]
        full = bar(seen.running, seen.slots, BAR)
        lines.append(Text(f"{stage.value.upper():4s} {full} {seen.running:3d} running {seen.waiting:4d} waiting"))
    return lines


def _step_line(run: RunLook | None, took_s: float) -> Text:
    if run is None:
        return Text(f"step connecting ... {took_s:.0f} s")
    ended = sum(run.outcomes.values())
    if not run.steps and not ended:
        return Text(f"step opening ... {took_s:.0f} s")
    if not run.steps:
        return Text(f"step complete · {ended} rollouts ended · {took_s:.0f} s")
    step = run.steps[0]
    dots = RIGHT * step.accepted + WRONG * max(0, step.target - step.accepted) if step.target <= 48 else f"{step.accepted}/{step.target}"
    filtered = run.groups.get("filtered", 0)
    return Text(f"step {dots} {step.accepted} of {step.target} groups · {filtered} filtered · {ended} rollouts ended · {took_s:.0f} s")


def summarize(console: Console, outcome: DemoOutcome) -> None:
    """One trajectory whole, the groups, the figures."""
    console.print()
    console.rule("one trajectory, whole")
    console.print(f"[dim]job {escape(outcome.example.job)}[/dim]")
    render_trajectory(console, outcome.trajectory, longest=700)
    if outcome.grade is not None:
        console.print(_verdict(outcome.grade, outcome.prompt))
    console.print()
    console.rule(f"groups ({RIGHT} right  {WRONG} wrong  {UNCOUNTED} not counted)")
    _groups(console, outcome)
    console.print()
    _figures(console, outcome)


def _verdict(grade: Grade, prompt: Prompt) -> Text:
    """What the grader said, in a line: `math` says what stood in the box and what should have."""
    said = {
        name: value for name, value in grade.details.items() if name != SANDBOX and value != "" and isinstance(value, str | int | float)
    }
    said = {name: value for name, value in said.items() if value != ""}
    words = [str(said.pop("verdict"))] if "verdict" in said else []
    if "extracted" in said and prompt.data.get("answer") is not None:
        words += [f"boxed {said['extracted']!r}", f"gold {prompt.data['answer']!r}"]
    else:
        words += [f"{name} {visible_line(str(value))[:MOST_DETAIL_CHARS]}" for name, value in said.items()]
        words += [f"{name} {value:g}" for name, value in grade.components.items()]
    words += [f"reward {grade.reward:g}", f"by {grade.grader}"]
    return Text.assemble(("verdict ", "bold"), " · ".join(words))


def _groups(console: Console, outcome: DemoOutcome) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("group", "members", "verdict", "mean", "tokens"):
        table.add_column(name, justify="right" if name in ("mean", "tokens") else "left")
    records = sorted(outcome.step.all_groups, key=lambda group: (group.verdict.value != "informative", group.verdict.value, group.group))
    for record in records[:GROUPS_SHOWN]:
        mean = "" if record.mean is None else f"{record.mean:.2f}"
        table.add_row(record.group, _dots(record), record.verdict.value, mean, f"{record.sampled_tokens:,}")
    console.print(table)
    if len(records) > GROUPS_SHOWN:
        console.print(f"... and {len(records) - GROUPS_SHOWN} more")


def _dots(record: GroupRecord) -> str:
    values: Sequence[float | None] = record.values or (None,) * record.want
    return "".join(UNCOUNTED if value is None else RIGHT if value >= 0.5 else WRONG for value in values)


def _figures(console: Console, outcome: DemoOutcome) -> None:
    step, statistics = outcome.step.record, outcome.statistics
    metrics = outcome.step.metrics
    ended = statistics.outcomes
    launched, later = groups_by_end(step, statistics.groups, parked=outcome.parked)
    rows = {
        "groups": launched,
        **({"later": later} if later else {}),
        "rollouts": " · ".join(f"{count} {name}" for name, count in sorted(ended.items())),
        "reward": f"mean {metrics['reward_mean']:.2f} of trained members, {metrics['reward_mean_all']:.2f} of all judged groups",
        "tokens": " · ".join(shares(statistics.tokens)),
        "time": f"step {step.took_s:.1f} s · a rollout in the mean: "
        + " · ".join(f"{stage.value.upper()} {metrics[f'seconds_{stage.value}_mean']:.2f} s" for stage in Stage),
    }
    if ended.get("cancelled"):
        rows["why"] = (
            f"{ended['cancelled']} rollouts were cancelled: the step had its {step.target} groups, and nobody of theirs had finished"
        )
    for name, text in rows.items():
        console.print(f"[bold]{name:9s}[/bold]{text}")


def groups_by_end(step: StepRecord, counted: Mapping[str, int], *, parked: int) -> tuple[str, str]:
    """How all groups that were launched ended: those of the step, and those that closed when it was complete; empty = there were none.

    Args:
        counted: of the run: launched, and by verdict.
        parked: informative ones that wait for a next step.
    """
    words = [
        f"{len(step.groups)} informative (target {step.target})",
        f"{step.filtered} filtered",
        f"{step.dropped} dropped",
        f"{step.redundant} cancelled as redundant",
    ]
    of_step = {
        Verdict.INFORMATIVE: len(step.groups),
        Verdict.FILTERED: step.filtered,
        Verdict.DROPPED: step.dropped,
        Verdict.CANCELLED: step.cancelled + step.redundant,
        Verdict.SURPLUS: step.surplus,
        Verdict.STALE: step.stale,
        Verdict.DEAD: step.dead,
    }
    words += [f"{of_step[each]} {each.value}" for each in (Verdict.SURPLUS, Verdict.STALE, Verdict.DEAD) if of_step[each]]
    later = [f"{parked} informative, parked for a next step"] if parked else []
    left = counted.get("launched", 0) - sum(of_step.values()) - parked
    for verdict in Verdict:
        count = max(0, counted.get(verdict.value, 0) - of_step[verdict])
        later += [f"{count} {verdict.value}"] if count else []
        left -= count
    later += [f"{left} not closed yet"] if left > 0 else []
    after = f"{' · '.join(later)}, after the step was complete" if later else ""
    return f"{counted.get('launched', 0)} launched: {' · '.join(words)}", after


def next_commands(console: Console, outcome: DemoOutcome, *, kept: DemoState | None, again: str) -> None:
    """Where to go from here; `again` is the command that shows the same demo."""
    console.print("\n[bold]next[/bold]")
    if kept is not None:
        console.print("  .venv/bin/rollstream top                     the pipeline, live")
        console.print("  .venv/bin/rollstream redis cli               look into the streams")
        console.print("  ./ops/launch down                            stop this demo")
        console.print("its model, for a run of your own:")
        console.print(f"  .venv/bin/rollstream llm add --shared --run mine {escape(kept.model_url)}", soft_wrap=True)
    else:
        console.print(f"  .venv/bin/rollstream job show {outcome.example.job}   this trajectory again")
        console.print(f"  .venv/bin/rollstream queue peek results:{kept_run(outcome)}   the records a trainer reads")
        console.print(f"  {again} --keep   the same, and leave it up")


def kept_run(outcome: DemoOutcome) -> str:
    """Id of the demo's run."""
    return outcome.example.job.split(".", 1)[0]
