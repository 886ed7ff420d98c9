"""Runs on a terminal: a line each, or one on a page. Fine at 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.look import RunLook
from ops.run_report import RunReport
from pipeline.counts import counted
from pipeline.supervisor.monitors import Health, LengthBias, Starvation
from pipeline.supervisor.run_account import StepAccount

BAR = 24
"""Columns of a bar."""
HEALTH_STYLE = {Health.OK: "green", Health.WARN: "bold yellow", Health.UNKNOWN: "dim"}
SHORTAGE = {
    "paused": "the run is paused",
    "no_workers": "a stage has no live worker",
    "broken": "infrastructure broke the last groups whole: one is tried each 15 s",
    "prompts": "the reserve is empty: feed prompts",
    "trainer": "the trainer reports the rewards, and gives no sign",
    "queue_full": "Redis is at its memory bound",
}


def shares(counts: Mapping[str, int]) -> list[str]:
    """Counts with their share of the sum, the largest first."""
    whole = max(1, sum(counts.values()))
    return [f"{name} {count:,} ({count / whole:.0%})" for name, count in sorted(counts.items(), key=lambda item: -item[1])]


def bar(part: int, whole: int, columns: int = BAR) -> str:
    """A bar that is full at `whole`."""
    filled = 0 if whole <= 0 else round(columns * min(1.0, part / whole))
    return "█" * filled + "·" * (columns - filled)


def ago(seconds: float) -> str:
    """A duration in one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def runs_table(runs: Sequence[RunLook]) -> Table:
    """A line a run."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("run", "state", "trainer", "inc", "version", "step", "groups", "jobs", "reserve", "w/quota"):
        justify: Literal["left", "right"] = "left" if name in ("run", "state", "version") else "right"
        # an id is folded and never cut: it is what the other commands take
        table.add_column(
            name, justify=justify, overflow="fold", no_wrap=name not in ("run", "state"), min_width=12 if name == "run" else None
        )
    for run in runs:
        step = run.steps[0] if run.steps else None
        table.add_row(
            run.name,
            run.state,
            ago(run.contact_s),
            str(run.incarnation),
            run.version or "-",
            f"{step.index}: {step.accepted}/{step.target}" if step else "-",
            str(run.groups_in_flight),
            str(run.in_flight),
            str(run.reserve),
            f"{run.weight:g}/{run.quota or '-'}",
        )
    return table


def report_page(report: RunReport) -> Group:
    """One run."""
    run = report.look
    parts: list[RenderableType] = [
        Text.assemble(("run ", "bold"), (run.name, "bold"), f"  {run.state} · trainer heard {ago(run.contact_s)} ago"),
        Text(
            f"incarnation {run.incarnation} · version {run.version or 'not said'} · weight {run.weight:g} · "
            f"quota {run.quota or 'none'} · {counted(run.waiting, 'job')} queued · {run.in_flight} in flight"
        ),
        Text(""),
    ]
    open_steps = [step for step in report.steps if step.is_open]
    parts += [Text(f"step {step.index}  {bar(step.accepted, step.target)}  {step.accepted} of {step.target} groups") for step in open_steps]
    if not open_steps:
        parts.append(Text("no step is open"))
    parts += [Text(""), *_counts(report), Text(""), *_monitors(report), Text("")]
    parts.append(Text("why waiting", style="bold"))
    parts += [Text(f"  {sentence}") for sentence in report.why_waiting]
    reached = [step for step in report.steps if not step.is_open]
    if reached:
        parts += [Text(""), _steps_table(reached)]
    return Group(*parts)


def _counts(report: RunReport) -> list[Text]:
    run = report.look
    groups = [f"{name} {count:,}" for name, count in run.groups.items() if name not in ("launched", "given_up")]
    prompts = [f"{name} {count:,}" for name, count in report.prompts.items()]
    lines = {
        "groups": [f"{run.groups_in_flight} in flight", f"{report.parked} parked", *groups],
        "prompts": [f"{run.reserve} in reserve", *prompts],
        "jobs": [*([f"{name} {count:,}" for name, count in run.outcomes.items()] or ["none ended"]), *filter(None, [run.places_text])],
        "tokens": shares(run.tokens) or ["none counted yet"],
        "results": _results(report),
        "servers": [f"{count} {standing}" for standing, count in sorted(report.servers.items())] or ["none"],
    }
    return [Text.assemble((f"{name:9s}", "bold"), " · ".join(words)) for name, words in lines.items()]


def _results(report: RunReport) -> list[str]:
    unread = f"{report.unread:,} not acknowledged" + (f", the oldest for {ago(report.oldest_unread_s)}" if report.unread else "")
    return [unread, *([counted(report.awaiting, "job awaits a reward", "jobs await a reward")] if report.awaiting else [])]


def _monitors(report: RunReport) -> list[Text]:
    monitors = report.monitors
    lines = [*_length_lines(monitors.length), *_starvation_lines(monitors.starvation, report.look)]
    if monitors.shortage:
        lines.append(Text(f"          now: {SHORTAGE.get(monitors.shortage, monitors.shortage)}", style="yellow"))
    return lines


def _length_lines(length: LengthBias) -> list[Text]:
    head = Text.assemble(("length   ", "bold"), (f"{length.health.value:8s}", HEALTH_STYLE[length.health]))
    if length.health is Health.UNKNOWN:
        return [head + Text(f"{length.judged_members} judged members in the window: too few to say")]
    head += Text(
        f"mean tokens trained {length.trained_mean:,.0f} · judged {length.judged_mean:,.0f} · sampled {length.sampled_mean:,.0f}"
        f" ({length.groups} groups)"
    )
    lines = [
        head,
        Text(
            f"                 judged/sampled {length.cut_ratio:.2f}, from {length.tail_length:,} tokens on {length.cut_tail:.2f}"
            f" · trained/judged {length.filter_ratio:.2f}, {length.filter_tail:.2f}"
        ),
        Text(
            f"                 age {length.trained_age_s:.0f} s and {length.trained_age_versions:.1f} versions trained, "
            f"{length.judged_age_s:.0f} s and {length.judged_age_versions:.1f} judged"
        ),
    ]
    return lines + [Text(f"          {sentence}", style="yellow") for sentence in length.warnings]


def _starvation_lines(starvation: Starvation, run: RunLook) -> list[Text]:
    head = Text.assemble(("starved  ", "bold"), (f"{starvation.health.value:8s}", HEALTH_STYLE[starvation.health]))
    if starvation.health is Health.UNKNOWN or not run.steps:
        return [head + Text("no step is open")]
    words = [f"{why} {seconds:.1f} s" for why, seconds in starvation.short_s.items()]
    return [head + Text(f"{starvation.share:.0%} of the {ago(starvation.watched_s)} of step {run.steps[0].index}" + _in_brackets(words))]


def _in_brackets(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _steps_table(steps: Sequence[StepAccount]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("step", "groups", "filtered", "dropped", "redundant", "tokens kept", "took", "cancels settled", "starved"):
        table.add_column(name, justify="right")
    for step in steps:
        counts, tokens = step.counts, sum(step.tokens.values())
        table.add_row(
            str(step.index),
            f"{step.accepted}/{step.target}{' short' if step.is_short else ''}",
            str(counts.get("filtered", 0)),
            str(counts.get("dropped", 0) + counts.get("dead", 0)),
            str(step.redundant),
            f"{step.tokens.get('kept', 0) / tokens:.0%}" if tokens else "-",
            f"{step.took_s:.1f} s" if step.took_s is not None else "-",
            f"{step.cancel_settled_s:.2f} s" if step.cancel_settled_s is not None else "-",
            f"{step.starvation.share:.0%}",
        )
    return table
