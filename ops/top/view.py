"""One look at the pipeline as a picture, fine at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.look import Look, RunLook
from ops.run_view import bar, shares


def screen(found: Look, troubles: Sequence[str] = (), *, over_time: RenderableType | None = None) -> Group:
    """One look as a picture.

    Args:
        over_time: the looks before; None = they are not shown.
        troubles: what is wrong with the servers of Redis, in sentences.
    """
    stages = Table(box=None, pad_edge=False)
    for name in ("stage", "waiting", "running", "slots", "workers", ""):
        stages.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage, seen in found.stages.items():
        stages.add_row(
            stage.value.upper(),
            str(seen.waiting),
            str(seen.running),
            str(seen.slots),
            str(seen.workers),
            bar(seen.running, seen.slots),
        )
    memory = f"{found.used_bytes / 2**20:.0f} MiB" + (f" of {found.max_bytes / 2**20:.0f}" if found.max_bytes else "")
    last = Text(f"delayed retries {found.delayed} · dead letters {found.dead} · Redis {memory}")
    before = [Text(""), over_time] if over_time is not None else []
    return Group(stages, *before, Text(""), *(_run_lines(found.runs) or [Text("no run yet")]), Text(""), last, *map(Text, troubles))


def no_answer(why: str, troubles: Sequence[str]) -> Group:
    """Instead of a look, while Redis gives none."""
    return Group(Text("Redis gives no answer; looking again"), *map(Text, troubles or [why]))


def _run_lines(runs: Sequence[RunLook]) -> list[Text]:
    lines = []
    for run in runs:
        about = f"  starved ({run.shortage})" if run.shortage else ""
        ended = " ".join(f"{name} {count}" for name, count in run.outcomes.items()) or "nothing ended"
        counts = f"queue {run.waiting}  in flight {run.in_flight}  prompts {run.reserve}"
        lines.append(Text(f"run {run.name}  {run.state}  {counts}  {ended}{about}"))
        if run.tokens:
            lines.append(Text("  tokens: " + " · ".join(shares(run.tokens))))
        if run.places_text:
            lines.append(Text(f"  {run.places_text}"))
        for step in run.steps:
            dots = "●" * step.accepted + "○" * max(0, step.target - step.accepted) if step.target <= 64 else ""
            lines.append(Text(f"  step {step.index}: {step.accepted} of {step.target} groups of {step.n}  {dots}"))
    return lines
