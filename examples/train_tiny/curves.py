"""The curves of a run: a line a step in `curves.csv`, and the picture of it."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

CSV, PNG = "curves.csv", "curves.png"
NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step. The first, with index 0, is what training begins with: it has a held-out reward alone."""

    step: int
    minutes: float
    """Since training began, held-out measurements included."""
    held_out: float = NAN
    """Mean reward of held-out tasks, none filtered; NaN where nothing was measured."""
    held_out_tasks: int = 0
    reward: float = NAN
    """Mean of all judged groups, filtered ones included."""
    filtered_share: float = NAN
    """Of groups."""
    tokens: int = 0
    """Sampled by the run so far, whatever became of them."""
    tokens_kept: int = 0
    """Of this step, trained on."""
    staleness: float = NAN
    """Updates between what sampled and what is trained, mean over groups."""
    wait_s: float = NAN
    """The trainer waited for the step."""
    learn_s: float = NAN
    """And trained."""
    push_s: float = NAN
    """And brought the weights to the server."""
    turns: float = NAN
    """A member; 2 = it called the tool once."""
    entropy: float = NAN
    behaviour_ratio: float = NAN
    clipped: float = NAN


def append(out: Path, point: Point) -> None:
    """Adds a line."""
    path = out / CSV
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        if is_new:
            writer.writeheader()
        writer.writerow({name: round(value, 5) if isinstance(value, float) else value for name, value in asdict(point).items()})


def read(out: Path) -> list[Point]:
    """All of them. A step that was taken again after a kill has the line that came last."""
    try:
        with (out / CSV).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return []
    kinds = {field.name: int if field.type == "int" else float for field in fields(Point)}
    found: dict[str, dict[str, Any]] = {row["step"]: {name: kinds[name](value) for name, value in row.items()} for row in rows}
    return sorted((Point(**values) for values in found.values()), key=lambda point: point.step)


def draw(out: Path, title: str) -> None:
    """Makes `curves.png` of the lines that are there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = read(out)
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 6.5), layout="constrained")
    figure.suptitle(title)
    steps = [point.step for point in points]
    measured = [point for point in points if point.held_out_tasks]
    held_out, filtered, tokens, staleness, wait, turns = axes.flat
    held_out.plot([point.step for point in measured], [point.held_out for point in measured], "o-", label="held out, unfiltered")
    held_out.plot(steps, [point.reward for point in points], alpha=0.5, label="training, all groups")
    held_out.axhline(0.8, color="grey", linewidth=0.8, linestyle=":")
    held_out.set(title="reward", ylim=(0, 1))
    held_out.legend()
    filtered.plot(steps, [point.filtered_share for point in points])
    filtered.set(title="filtered share of groups", ylim=(0, 1))
    tokens.plot(steps, [point.tokens / 1000 for point in points])
    tokens.set(title="sampled tokens, thousands")
    staleness.plot(steps, [point.staleness for point in points])
    staleness.set(title="staleness, updates", ylim=(0, 2))
    for name in ("wait_s", "learn_s", "push_s"):
        wait.plot(steps, [getattr(point, name) for point in points], label=name)
    wait.set(title="seconds a step")
    wait.legend()
    turns.plot(steps, [point.turns for point in points])
    turns.set(title="turns a rollout (2 = one tool call)", ylim=(0.9, 3.1))
    for axis in axes.flat:
        axis.set_xlabel("step")
    figure.savefig(out / PNG, dpi=110)
    pyplot.close(figure)
